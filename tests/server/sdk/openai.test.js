// The official OpenAI SDK against the server with the small model.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { GREETING, idle, longRequest, startServer, startSlowServer, weatherTool } from '../moonshine.js';

let server, client;
const model = 'moonshine';
const tools = [{ type: 'function', function: weatherTool }];
const hello = [{ role: 'user', content: 'Say hello.' }];
const weather = [{ role: 'user', content: 'What is the weather in Rome?' }];

before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: server.origin + '/v1', apiKey: 'any', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

test('models', async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, model);
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve('nothing'), OpenAI.NotFoundError);
});

test('chat', async () => {
  const { data, response } = await client.chat.completions.create({ model, messages: hello, user: 'me' }).withResponse();
  const [choice] = data.choices;
  assert.equal(choice.message.content, GREETING);
  assert.match(choice.message.reasoning_content, /hello/);
  assert.equal(choice.message.tool_calls, undefined);
  assert.equal(choice.finish_reason, 'stop');
  assert.match(data.id, /^chatcmpl-[0-9a-f]{32}$/);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.ok(data.usage.completion_tokens_details.reasoning_tokens > 0);
  assert.equal(response.headers.get('x-moonshine-ignored-fields'), 'user');
});

test('stream equals the whole reply', async () => {
  const whole = await client.chat.completions.create({ model, messages: hello });
  const stream = await client.chat.completions.create(
    { model, messages: hello, stream: true, stream_options: { include_usage: true } });
  let content = '', reasoning = '', usage = null, finish = null, chunks = 0;
  for await (const chunk of stream) {
    chunks++;
    if (chunk.usage) usage = chunk.usage;
    const [choice] = chunk.choices;
    if (!choice) continue;
    content += choice.delta.content ?? '';
    reasoning += choice.delta.reasoning_content ?? '';
    finish = choice.finish_reason ?? finish;
  }
  assert.equal(content, whole.choices[0].message.content);
  assert.equal(reasoning, whole.choices[0].message.reasoning_content);
  assert.equal(finish, 'stop');
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.ok(chunks > 8);
});

test('the stream helper assembles a message', async () => {
  const stream = client.chat.completions.stream({ model, messages: hello });
  assert.equal(await stream.finalContent(), GREETING);
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, 'stop');
});

test('tools in two requests reuse every earlier token', async () => {
  const first = await client.chat.completions.create({ model, messages: weather, tools });
  const [choice] = first.choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, null);
  const [call] = choice.message.tool_calls;
  assert.match(call.id, /^call_[A-Za-z0-9]{24}$/);
  assert.equal(call.function.name, 'get_weather');
  assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Rome' });
  const messages = [...weather, choice.message, { role: 'tool', tool_call_id: call.id, content: 'sunny, 21 C' }];
  const second = await client.chat.completions.create({ model, messages, tools });
  assert.equal(second.choices[0].message.content, 'The weather in Rome is sunny with 21 degrees.');
  assert.equal(second.usage.prompt_tokens_details.cached_tokens,
    first.usage.prompt_tokens + first.usage.completion_tokens);
  const thanks = [...messages, second.choices[0].message, { role: 'user', content: 'Thank you!' }];
  const third = await client.chat.completions.create({ model, messages: thanks, tools });
  assert.equal(third.usage.prompt_tokens_details.cached_tokens,
    second.usage.prompt_tokens + second.usage.completion_tokens);
});

test('a streamed call equals the whole one', async () => {
  const whole = await client.chat.completions.create({ model, messages: weather, tools });
  const streamed = await client.chat.completions.stream({ model, messages: weather, tools }).finalChatCompletion();
  const [a, b] = [whole, streamed].map(r => r.choices[0].message.tool_calls[0].function);
  assert.equal(a.name, b.name);
  assert.equal(a.arguments, b.arguments);
  assert.equal(streamed.choices[0].finish_reason, 'tool_calls');
});

test('the tool runner completes a conversation', async () => {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model, messages: weather, tools: [{ type: 'function', function: { ...weatherTool, parse: JSON.parse,
      function: args => { seen.push(args); return 'snowy, 3 C'; } } }],
  });
  assert.equal(await runner.finalContent(), 'The weather in Rome is snowy with 3 degrees.');
  assert.deepEqual(seen, [{ city: 'Rome' }]);
});

test('tool choices', async () => {
  const named = await client.chat.completions.create({ model, messages: weather, tools,
    tool_choice: { type: 'function', function: { name: 'get_weather' } }, parallel_tool_calls: false });
  assert.equal(named.choices[0].message.tool_calls.length, 1);
  assert.equal(named.choices[0].finish_reason, 'tool_calls');
  const required = await client.chat.completions.create({ model, messages: weather, tools, tool_choice: 'required' });
  assert.equal(required.choices[0].message.tool_calls[0].function.name, 'get_weather');
  await assert.rejects(client.chat.completions.create({ model, messages: weather, tools,
    tool_choice: { type: 'function', function: { name: 'other' } } }), e => e.code === 'invalid_tool_choice');
});

test('replayed reasoning keeps the prefix, dropped reasoning is a correct full prefill', async () => {
  const first = await client.chat.completions.create({ model, messages: [{ role: 'user', content: 'Hello' }] });
  const next = { role: 'user', content: 'What is the capital of France?' };
  const whole = [{ role: 'user', content: 'Hello' }, first.choices[0].message, next];
  const second = await client.chat.completions.create({ model, messages: whole });
  assert.equal(second.usage.prompt_tokens_details.cached_tokens,
    first.usage.prompt_tokens + first.usage.completion_tokens);
  const { reasoning_content, ...dropped } = first.choices[0].message;
  assert.ok(reasoning_content);
  const third = await client.chat.completions.create({ model, messages: [whole[0], dropped, next] });
  assert.ok(third.usage.prompt_tokens_details.cached_tokens < first.usage.prompt_tokens + 1);
  assert.match(third.choices[0].message.content, /Paris/);
  assert.match(second.choices[0].message.content, /Paris/);
});

test('structured output', async () => {
  const shape = z.object({ city: z.string(), name: z.string() });
  const messages = [{ role: 'user', content: 'Make a JSON object: city is Rome; name is Dara.' }];
  const parsed = await client.chat.completions.parse({ model, messages, response_format: zodResponseFormat(shape, 'object') });
  assert.deepEqual(parsed.choices[0].message.parsed, { city: 'Rome', name: 'Dara' });
  const object = await client.chat.completions.create({ model, messages, response_format: { type: 'json_object' } });
  assert.deepEqual(JSON.parse(object.choices[0].message.content), { city: 'Rome', name: 'Dara' });
});

test('structured output and calls hold whatever is sampled', async () => {
  const shape = z.object({ kind: z.enum(['a', 'b']), count: z.int(), tags: z.array(z.string()).max(3) });
  for (let seed = 0; seed < 6; seed++) {
    const { choices: [choice] } = await client.chat.completions.parse({ model, messages: hello, temperature: 2, seed,
      max_tokens: 400, response_format: zodResponseFormat(shape, 'thing') });
    assert.ok(choice.message.parsed, choice.message.content);
    const called = await client.chat.completions.create({ model, messages: hello, temperature: 2, seed, max_tokens: 400,
      tools, tool_choice: 'required', parallel_tool_calls: false });
    const calls = called.choices[0].message.tool_calls;
    assert.equal(calls.length, 1);
    assert.deepEqual(Object.keys(JSON.parse(calls[0].function.arguments)), ['city']);
  }
});

test('stop, limit, seed and log probabilities', async () => {
  const stopped = await client.chat.completions.create({ model, messages: hello, stop: ['How'] });
  assert.equal(stopped.choices[0].message.content, GREETING.slice(0, GREETING.indexOf('How')));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
  const cut = await client.chat.completions.create({ model, messages: hello, max_completion_tokens: 3 });
  assert.equal(cut.choices[0].finish_reason, 'length');
  assert.equal(cut.usage.completion_tokens, 3);
  const sampled = { model, messages: [{ role: 'user', content: 'Write a poem.' }], temperature: 1.5, seed: 7, max_tokens: 60 };
  const [one, two] = [await client.chat.completions.create(sampled), await client.chat.completions.create(sampled)];
  assert.deepEqual(one.choices[0].message, two.choices[0].message);
  const probable = await client.chat.completions.create({ model, messages: hello, logprobs: true, top_logprobs: 3 });
  const entries = probable.choices[0].logprobs.content;
  const bytes = Buffer.from(entries.flatMap(e => e.bytes));
  assert.equal(bytes.toString('utf8'), GREETING);
  assert.ok(entries.every(e => e.logprob <= 0 && e.top_logprobs.length === 3));
});

test('raw completions', async () => {
  const whole = await client.completions.create({ model, prompt: 'Hello', max_tokens: 5 });
  assert.equal(whole.object, 'text_completion');
  let text = '';
  for await (const chunk of await client.completions.create({ model, prompt: 'Hello', max_tokens: 5, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(text, whole.choices[0].text);
});

test('responses', async () => {
  const whole = await client.responses.create({ model, input: 'Say hello.', instructions: 'You are kind.' });
  assert.equal(whole.output_text, GREETING);
  assert.deepEqual(whole.output.map(i => i.type), ['reasoning', 'message']);
  assert.equal(whole.status, 'completed');
  const stream = client.responses.stream({ model, input: 'Say hello.', instructions: 'You are kind.' });
  let text = '', thought = '', sequence = 0;
  for await (const event of stream) {
    assert.equal(event.sequence_number, sequence++);
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (event.type === 'response.reasoning_text.delta') thought += event.delta;
  }
  assert.equal(text, GREETING);
  const last = await stream.finalResponse();
  assert.equal(last.output_text, GREETING);
  assert.equal(last.output[0].content[0].text, thought);
  assert.equal(thought, whole.output[0].content[0].text);
});

test('responses: tools with sealed reasoning, and structured output', async () => {
  const options = { model, tools: [{ type: 'function', strict: true, ...weatherTool }], store: false,
    include: ['reasoning.encrypted_content'] };
  const input = [{ role: 'user', content: 'What is the weather in Rome?' }];
  const first = await client.responses.create({ ...options, input });
  const call = first.output.find(i => i.type === 'function_call');
  assert.deepEqual(JSON.parse(call.arguments), { city: 'Rome' });
  const sealed = first.output.map(item => item.type === 'reasoning'
    ? { type: 'reasoning', id: item.id, summary: [], encrypted_content: item.encrypted_content } : item);
  assert.ok(sealed[0].encrypted_content);
  const output = { type: 'function_call_output', call_id: call.call_id, output: 'sunny, 21 C' };
  const second = await client.responses.create({ ...options, input: [...input, ...sealed, output] });
  assert.equal(second.output_text, 'The weather in Rome is sunny with 21 degrees.');
  assert.equal(second.usage.input_tokens_details.cached_tokens, first.usage.total_tokens);
  // The call id proves the conversation: the result alone, and the items without their reasoning, continue it.
  const alone = await client.responses.create({ ...options, input: [output] });
  assert.equal(alone.output_text, second.output_text);
  assert.equal(alone.usage.input_tokens, second.usage.input_tokens);
  const bare = await client.responses.create({ ...options, input: [...input, call, output] });
  assert.equal(bare.output_text, second.output_text);
  assert.equal(bare.usage.input_tokens, second.usage.input_tokens);
  await assert.rejects(client.responses.create({ ...options,
    input: [...input, { ...call, call_id: 'call_other' }, { ...output, call_id: 'call_other' }] }),
  e => e.code === 'missing_reasoning_state' && e.param === 'input[1]');
  const shape = z.object({ city: z.string(), name: z.string() });
  const parsed = await client.responses.parse({ model, input: 'Make a JSON object: city is Rome; name is Dara.',
    text: { format: zodTextFormat(shape, 'object') } });
  assert.deepEqual(parsed.output_parsed, { city: 'Rome', name: 'Dara' });
  const cut = await client.responses.create({ model, input: 'Say hello.', max_output_tokens: 3 });
  assert.equal(cut.status, 'incomplete');
  assert.equal(cut.incomplete_details.reason, 'max_output_tokens');
});

test('errors have their classes, codes and paths', async () => {
  const create = body => client.chat.completions.create({ model, messages: hello, ...body });
  await assert.rejects(create({ model: 'gpt' }), e => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found');
  await assert.rejects(create({ messages: [{ role: 'user', content: [{ type: 'text', text: 7 }] }] }),
    e => e instanceof OpenAI.BadRequestError && e.code === 'invalid_type' && e.param === 'messages[0].content[0].text');
  await assert.rejects(create({ n: 2 }), e => e.code === 'unsupported_value' && e.param === 'n');
  await assert.rejects(create({ max_tokens: 5000 }), e => e.code === 'out_of_range' && /\[1,4096\]/.test(e.message));
  await assert.rejects(create({ messages: [{ role: 'user', content: 'word '.repeat(6000) }] }),
    e => e.code === 'context_length_exceeded' && /maximum context length is 4096 tokens/.test(e.message));
  await assert.rejects(client.responses.create({ model, input: 'x', previous_response_id: 'resp_1' }),
    e => e.code === 'previous_response_unsupported');
  await assert.rejects(client.responses.create({ model,
    input: [{ type: 'function_call_output', call_id: 'call_x', output: 'y' }] }), e => e.code === 'unknown_call_id');
});

test('an aborted request frees the slot, streamed or not; a busy server says when to come back', async () => {
  const slow = await startSlowServer();
  try {
    const client = new OpenAI({ baseURL: slow.origin + '/v1', apiKey: 'any', maxRetries: 0 });
    const stream = await client.chat.completions.create({ ...longRequest, stream: true });
    let chunks = 0;
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      if (++chunks < 5) continue;
      await assert.rejects(client.chat.completions.create(longRequest),
        e => e.status === 503 && e.code === 'server_busy' && Number(e.headers.get('retry-after')) >= 1);
      break;
    }
    await idle(slow.origin);
    const controller = new AbortController();
    const whole = client.chat.completions.create(longRequest, { signal: controller.signal });
    setTimeout(() => controller.abort(), 100);
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await idle(slow.origin);
    const short = await client.chat.completions.create({ ...longRequest, max_tokens: 2 });
    assert.equal(short.usage.completion_tokens, 2);
  } finally {
    await slow.stop();
  }
});

test('a key is asked for', async () => {
  const locked = await startServer('--api-key', 'sesame');
  try {
    const wrong = new OpenAI({ baseURL: locked.origin + '/v1', apiKey: 'other', maxRetries: 0 });
    await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
    const right = new OpenAI({ baseURL: locked.origin + '/v1', apiKey: 'sesame', maxRetries: 0 });
    assert.equal((await right.models.list()).data.length, 1);
    assert.ok(!locked.log().includes('sesame'));
  } finally {
    await locked.stop();
  }
});
