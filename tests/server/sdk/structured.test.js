// Structured outputs and strict calls at temperature 1, validated by a JSON Schema implementation that is not ours.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import OpenAI from 'openai';
import { startServer } from '../moonshine.js';

let server, client;
const model = 'moonshine';
const ajv = new Ajv2020({ strict: false, allErrors: true });
addFormats(ajv);

before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: server.origin + '/v1', apiKey: 'any', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

const object = (properties, rest = {}) => ({ type: 'object', properties, required: Object.keys(properties),
  additionalProperties: false, ...rest });
const text = { type: 'string', maxLength: 12 };

// [schema, a value that does not fit]
const cases = [
  [object({ name: text, age: { type: 'integer', minimum: 0, maximum: 120 } }), { name: 'a', age: 121 }],
  [object({ a: { type: 'boolean' }, b: { type: 'null' } }), { a: 1, b: null }],
  [{ enum: ['red', 'green', 7, null, { k: [1] }] }, 'blue'],
  [{ const: { version: 2, tags: ['x', 'y'] } }, { version: 2, tags: [] }],
  [{ type: ['integer', 'null'], minimum: -3, maximum: 3 }, 4],
  [{ type: 'number', exclusiveMinimum: 0, exclusiveMaximum: 1 }, 1],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, 80], // what a double takes for an integer is one
  [{ type: 'array', items: { type: 'number', minimum: 0, maximum: 2 }, uniqueItems: true, minItems: 2, maxItems: 4 }, [1, 1.0]],
  [{ type: 'integer', multipleOf: 7, minimum: 10, maximum: 99 }, 15],
  [{ type: 'integer', exclusiveMinimum: 100 }, 100],
  [{ type: 'string', minLength: 3, maxLength: 5 }, 'ab'],
  [{ type: 'string', pattern: '^[A-Z]{2}-[0-9]{3}$' }, 'AB-12'],
  [{ type: 'string', pattern: '^(alpha|beta)+$', maxLength: 20 }, 'gamma'],
  [{ type: 'string', format: 'date' }, '2025-02-30'],
  [{ type: 'string', format: 'date-time' }, '2025-01-01'],
  [{ type: 'string', format: 'time' }, '25:00:00Z'],
  [{ type: 'string', format: 'uuid' }, 'no'],
  [{ type: 'string', format: 'ipv4' }, '1.2.3.256'],
  [{ type: 'string', format: 'ipv6' }, '::g'],
  [{ type: 'string', format: 'email', pattern: '^[a-z.]{1,8}@[a-z]{1,8}\\.[a-z]{2}$' }, '.a@b.cc'], // no host without a dot
  [{ type: 'string', format: 'hostname', maxLength: 20 }, '-a'],
  [{ type: 'array', items: { type: 'integer' }, minItems: 2, maxItems: 4 }, [1]],
  [{ type: 'array', items: { enum: ['a', 'b', 'c'] }, uniqueItems: true, minItems: 2 }, ['a', 'a']],
  [{ type: 'array', items: { enum: ['a', 'b', 'c', 1, null] }, uniqueItems: true, minItems: 3 }, ['a', 1, 1]],
  [{ type: 'array', prefixItems: [{ type: 'boolean' }, text], items: false, minItems: 2 }, [true, 'a', 1]],
  [{ type: 'array', items: { type: 'integer', minimum: 0, maximum: 9 }, contains: { const: 5 }, minItems: 1, maxItems: 5 },
    [1, 2]],
  [{ type: 'array', items: object({ k: text, v: { type: 'number' } }), maxItems: 2 }, [{ k: 'a' }]],
  [object({ a: text, b: { type: 'integer' } }, { required: ['b'] }), { a: 'x' }],
  [{ type: 'object', additionalProperties: { type: 'boolean' }, minProperties: 1, maxProperties: 3 }, { a: 1 }],
  [{ type: 'object', patternProperties: { '^x_[a-z]{1,3}$': { type: 'integer' } }, additionalProperties: false, minProperties: 1 },
    { y: 1 }],
  [{ type: 'object', propertyNames: { pattern: '^[a-c]{1,2}$' }, additionalProperties: { enum: [0, 1] }, maxProperties: 2 },
    { d: 0 }],
  [{ anyOf: [{ type: 'null' }, object({ id: { type: 'integer' } }), { type: 'array', items: { type: 'boolean' }, maxItems: 2 }] },
    { id: 'x' }],
  [{ oneOf: [object({ kind: { const: 'circle' }, r: { type: 'number' } }), object({ kind: { const: 'box' }, w: { type: 'number' } })] },
    { kind: 'circle', w: 1 }],
  [{ allOf: [{ type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] },
    { type: 'object', properties: { b: text }, required: ['b'] }], maxProperties: 2 }, { a: 1 }],
  [{ allOf: [{ type: 'integer', minimum: 5 }, { maximum: 8 }] }, 9],
  [{ type: 'integer', not: { enum: [1, 2, 3] }, minimum: 1, maximum: 5 }, 2],
  [{ type: 'object', properties: { card: { enum: [true, false] }, number: { type: 'integer' } }, required: ['card'],
    dependentRequired: { number: ['card'] }, additionalProperties: false }, { number: 1 }],
  [{ $ref: '#/$defs/node', $defs: { node: { type: 'object', properties: { v: { type: 'integer' },
    next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/node' }] } }, required: ['v', 'next'], additionalProperties: false } } },
  { v: 1 }],
  [object({ tree: { $ref: '#/definitions/tree' } }, { definitions: { tree: { type: 'array', items: { $ref: '#/definitions/tree' },
    maxItems: 2 } } }), { tree: [[], [], []] }],
  [object({ deep: object({ deeper: object({ deepest: { type: 'string', enum: ['é', '日本', '🌙', '"\\/'] } }) }) }),
    { deep: { deeper: {} } }],
  [object({ 'key with "quotes"': text, 'ключ': { type: 'boolean' } }), {}],
  [{ type: 'object' }, []],
  [{ type: ['boolean', 'string'], maxLength: 8 }, 1],
];

const valid = (schema, value) => {
  const check = ajv.compile(schema);
  assert.ok(check(value), `${JSON.stringify(schema)}: ${JSON.stringify(value)}: ${ajv.errorsText(check.errors)}`);
};

test('the validator tells values apart', () => {
  for (const [schema, wrong] of cases) assert.ok(!ajv.compile(schema)(wrong), JSON.stringify(schema));
});

test('chat: a response in each schema', async () => {
  for (const [i, [schema]] of cases.entries()) {
    const { choices: [choice] } = await client.chat.completions.create({ model, temperature: 1, seed: i, max_tokens: 80,
      reasoning_effort: 'low', messages: [{ role: 'user', content: 'Make up a value.' }],
      response_format: { type: 'json_schema', json_schema: { name: 'value', strict: true, schema } } });
    valid(schema, JSON.parse(choice.message.content));
  }
});

test('responses: the same', async () => {
  for (const [i, [schema]] of cases.entries()) {
    if (i % 8) continue;
    const reply = await client.responses.create({ model, temperature: 1, max_output_tokens: 120, input: 'Make up a value.',
      text: { format: { type: 'json_schema', name: 'value', strict: true, schema } } });
    valid(schema, JSON.parse(reply.output_text));
  }
});

test('strict calls: arguments in each schema of an object', async () => {
  for (const [i, [schema]] of cases.entries()) {
    if (schema.type !== 'object' || i % 3) continue;
    const { choices: [choice] } = await client.chat.completions.create({ model, temperature: 1, seed: i, max_tokens: 120,
      messages: [{ role: 'user', content: 'Put it there.' }], tool_choice: 'required', parallel_tool_calls: false,
      tools: [{ type: 'function', function: { name: 'put', strict: true, parameters: schema } }] });
    const [call] = choice.message.tool_calls;
    assert.equal(call.function.name, 'put');
    valid(schema, JSON.parse(call.function.arguments));
  }
});
