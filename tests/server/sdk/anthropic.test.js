// The official Anthropic SDK against the server with the small model.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { GREETING, idle, reading, startServer, startSlowServer, weatherTool } from '../moonshine.js';

let server, client;
const model = 'moonshine';
const max_tokens = 300;
const hello = [{ role: 'user', content: 'Say hello.' }];
const weather = [{ role: 'user', content: 'What is the weather in Rome?' }];
const tools = [{ name: weatherTool.name, description: weatherTool.description, input_schema: weatherTool.parameters }];
const total = usage => usage.input_tokens + usage.cache_read_input_tokens;

before(async () => {
  server = await startServer();
  client = new Anthropic({ baseURL: server.origin, apiKey: 'any', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

test('a message', async () => {
  const message = await client.messages.create({ model, max_tokens, messages: hello, system: 'You are kind.' });
  assert.deepEqual(message.content.map(b => b.type), ['thinking', 'text']);
  assert.equal(message.content[1].text, GREETING);
  assert.ok(message.content[0].signature);
  assert.equal(message.stop_reason, 'end_turn');
  assert.match(message.id, /^msg_/);
  assert.ok(message.usage.output_tokens > 10);
});

test('stream equals the whole message', async () => {
  const whole = await client.messages.create({ model, max_tokens, messages: hello });
  const types = [];
  const stream = client.messages.stream({ model, max_tokens, messages: hello });
  stream.on('streamEvent', event => types.push(event.type));
  const streamed = await stream.finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  assert.equal(total(streamed.usage), total(whole.usage));
  assert.equal(types[0], 'message_start');
  assert.equal(types.at(-1), 'message_stop');
});

test('tools in two requests reuse every earlier token', async () => {
  const first = await client.messages.create({ model, max_tokens, messages: weather, tools });
  assert.equal(first.stop_reason, 'tool_use');
  const use = first.content.find(b => b.type === 'tool_use');
  assert.deepEqual(use.input, { city: 'Rome' });
  assert.match(use.id, /^toolu_/);
  const messages = [...weather, { role: 'assistant', content: first.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'sunny, 21 C' }] }];
  const { data: second, response } = await client.messages.create({ model, max_tokens, messages, tools }).withResponse();
  assert.equal(second.content.at(-1).text, 'The weather in Rome is sunny with 21 degrees.');
  assert.equal(second.usage.cache_read_input_tokens, total(first.usage) + first.usage.output_tokens);
  assert.equal(response.headers.get('x-moonshine-ignored-fields'), null); // the signature was recognised
});

test('a streamed tool use equals the whole one', async () => {
  const whole = await client.messages.create({ model, max_tokens, messages: weather, tools });
  const streamed = await client.messages.stream({ model, max_tokens, messages: weather, tools }).finalMessage();
  const [a, b] = [whole, streamed].map(m => m.content.find(x => x.type === 'tool_use'));
  assert.deepEqual(a.input, b.input);
  assert.equal(streamed.stop_reason, 'tool_use');
});

test('the tool runner of the beta client', async () => {
  const runner = client.beta.messages.toolRunner({ model, max_tokens, messages: weather,
    tools: [{ type: 'custom', ...tools[0], run: input => `snowy, 3 C in ${input.city}`.replace(/ in .*/, ''),
      parse: input => input }] });
  const last = await runner;
  assert.equal(last.content.at(-1).text, 'The weather in Rome is snowy with 3 degrees.');
});

test('counting equals what a request reports', async () => {
  const body = { model, messages: weather, tools, system: [{ type: 'text', text: 'You are kind.' }] };
  const { input_tokens } = await client.messages.countTokens(body);
  const message = await client.messages.create({ ...body, max_tokens });
  assert.equal(input_tokens, total(message.usage));
});

test('stop sequences and limits', async () => {
  const stopped = await client.messages.create({ model, max_tokens, messages: hello, stop_sequences: ['How'] });
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, 'How');
  assert.equal(stopped.content.at(-1).text, GREETING.slice(0, GREETING.indexOf('How')));
  const cut = await client.messages.create({ model, max_tokens: 2, messages: hello });
  assert.equal(cut.stop_reason, 'max_tokens');
  assert.equal(cut.usage.output_tokens, 2);
});

test('structured output', async () => {
  const schema = { type: 'object', properties: { city: { type: 'string' }, name: { type: 'string' } },
    required: ['city', 'name'], additionalProperties: false };
  const message = await client.messages.create({ model, max_tokens,
    messages: [{ role: 'user', content: 'Make a JSON object: city is Rome; name is Dara.' }],
    output_config: { format: { type: 'json_schema', schema } } });
  assert.deepEqual(JSON.parse(message.content.at(-1).text), { city: 'Rome', name: 'Dara' });
});

test('what coding agents send besides', async () => {
  const { data, response } = await client.messages.create({ model, max_tokens, metadata: { user_id: 'u' },
    thinking: { type: 'enabled', budget_tokens: 1024 },
    system: [{ type: 'text', text: 'x-anthropic-billing-header: cc_version=1; nonce=77' },
      { type: 'text', text: 'You are kind.', cache_control: { type: 'ephemeral' } }],
    tools: [{ ...tools[0], cache_control: { type: 'ephemeral' } }, { type: 'web_search_20250305', name: 'web_search' }],
    messages: [{ role: 'user', content: [{ type: 'text', text: 'Say hello.', cache_control: { type: 'ephemeral' } }] }],
  }).withResponse();
  assert.equal(data.content.at(-1).text, GREETING);
  assert.equal(response.headers.get('x-moonshine-ignored-tools'), 'web_search_20250305');
  const ignored = response.headers.get('x-moonshine-ignored-fields').split(',');
  for (const name of ['metadata', 'thinking.budget_tokens', 'system(billing-header)', 'system[].cache_control']) {
    assert.ok(ignored.includes(name), name);
  }
});

test('errors have their classes', async () => {
  const create = body => client.messages.create({ model, max_tokens, messages: hello, ...body });
  await assert.rejects(create({ model: 'claude' }), e => e instanceof Anthropic.NotFoundError &&
    e.error.error.type === 'not_found_error' && Boolean(e.error.request_id));
  await assert.rejects(create({ max_tokens: 0 }), e => e instanceof Anthropic.BadRequestError && /\[1,4096\]/.test(e.message));
  await assert.rejects(create({ messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }),
    Anthropic.BadRequestError);
  await assert.rejects(create({ thinking: { type: 'disabled' } }), Anthropic.BadRequestError);
});

test('pings while the server works, and an aborted stream frees the slot', async () => {
  const slow = await startSlowServer('--sse-keepalive-seconds', '1');
  try {
    const client = new Anthropic({ baseURL: slow.origin, apiKey: 'any', maxRetries: 0 });
    const body = { model, max_tokens: 3000, temperature: 1, seed: 3, messages: [{ role: 'user', content: 'word '.repeat(1500) }] };
    const response = await client.messages.create({ ...body, stream: true }).asResponse();
    await reading(slow.origin);
    await slow.pause(1200);
    let text = '';
    for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
      text += piece;
      if (text.includes('thinking_delta')) break;
    }
    assert.match(text, /^event: message_start\n/);
    assert.match(text, /\nevent: ping\ndata: {"type":"ping"}\n\n/);
    await idle(slow.origin);
    const stream = client.messages.stream({ ...body, messages: hello });
    await new Promise(resolve => stream.once('streamEvent', resolve));
    stream.abort();
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
    await idle(slow.origin);
    assert.equal((await client.messages.create({ ...body, messages: hello, max_tokens: 2 })).usage.output_tokens, 2);
  } finally {
    await slow.stop();
  }
});
