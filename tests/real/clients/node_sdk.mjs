// The openai and @anthropic-ai/sdk packages on Node, whose TLS goes through memory BIOs. CA by NODE_EXTRA_CA_CERTS.
// undici tells on its diagnostics channel when headers are written and on which socket: the truth for both.
//
// Usage: node node_sdk.mjs --base URL --out FILE --common JSON [--http2]  (CACHE = folder with node_modules)
import diagnostics from 'node:diagnostics_channel';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { parseArgs } from 'node:util';

const require = createRequire(path.join(path.resolve(process.env.CACHE), 'from-here.js'));
const { OpenAI } = require('openai');
const { Anthropic } = require('@anthropic-ai/sdk');

const { base, out, common, http2 } = parseArgs({
  options: { base: { type: 'string' }, out: { type: 'string' }, common: { type: 'string' }, http2: { type: 'boolean' } },
}).values;

const { apiKey, prompt, tokens, cancelAfter, cancelTokens, plainTokens, streams, llama } = JSON.parse(common);

const epoch = BigInt(Date.now()) * 1_000_000n - process.hrtime.bigint();
const now = () => Number(process.hrtime.bigint() + epoch); // beyond 2^53 the last 256 ns are lost: enough here

const expected = new Map();
function sent(name, socket) {
  const truth = expected.get(name);
  if (!truth) return;
  truth.t_send_ns = now();
  truth.local = [socket.localAddress, socket.localPort];
}
diagnostics.subscribe('undici:client:sendHeaders', ({ headers, socket }) => sent(/x-rig-request: (\S+)/i.exec(headers)?.[1], socket));

// Node's own fetch speaks HTTP/1.1 only; the package that it is made from offers HTTP/2 when it is asked to, and then tells
// nothing on its channel: the session is watched instead.
function overHttp2() {
  const sessions = require('node:http2');
  const { connect } = sessions;
  sessions.connect = (...args) => {
    const session = connect(...args);
    const { request } = session;
    session.request = (headers, ...more) => {
      sent(headers['x-rig-request'], session.socket);
      return request.call(session, headers, ...more);
    };
    return session;
  };
  const undici = require('undici');
  const dispatcher = new undici.Agent({ allowH2: true });
  return (url, init) => undici.fetch(url, { ...init, dispatcher });
}
const transport = http2 ? { fetch: overHttp2() } : {};

function begin(client, kind, number = 0) {
  const outcome = { cancel: 'cancelled', error: 'failed' }[kind] ?? 'completed';
  const truth = {
    client, case: kind, model: `${client}-${kind}-${number}`, id: null, status: null, outcome, local: null,
    t_send_ns: null, outputs_ns: [], end_ns: null, input_tokens: null, output_tokens: null,
    server_ms_per_token: null, server_prompt_ms: null,
  };
  expected.set(truth.model, truth);
  return truth;
}

function end(truth) {
  if (truth.case === 'warm') return;
  truth.end_ns = now();
  fs.appendFileSync(out, `${JSON.stringify(truth)}\n`);
}

const options = (truth) => ({ headers: { 'x-rig-request': truth.model } });
const messages = [{ role: 'user', content: prompt }];
const enough = (truth) => truth.case === 'cancel' && truth.outputs_ns.length >= cancelAfter;

function openaiUsage(truth, usage) {
  if (!usage) return;
  truth.input_tokens = usage.prompt_tokens;
  truth.output_tokens = usage.completion_tokens;
}

function anthropicUsage(truth, usage) {
  if (usage.input_tokens != null) {
    const cached = (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
    truth.input_tokens = usage.input_tokens + cached;
  }
  truth.output_tokens = usage.output_tokens;
}

async function openai() {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0, ...transport });
  const ask = (truth, max_tokens, more) =>
    client.chat.completions.create({ model: truth.model, messages, max_tokens, ...llama, ...more }, options(truth));

  async function stream(kind, number, limit) {
    const truth = begin('node-openai', kind, number);
    const events = await ask(truth, limit, { stream: true, stream_options: { include_usage: true } });
    truth.status = 200;
    for await (const event of events) {
      truth.id = event.id;
      if (event.choices[0]?.delta.content) truth.outputs_ns.push(now());
      openaiUsage(truth, event.usage);
      if (event.timings) {
        truth.server_ms_per_token = event.timings.predicted_per_token_ms;
        truth.server_prompt_ms = event.timings.prompt_ms;
      }
      if (enough(truth)) break; // leaving the loop aborts the request
    }
    end(truth);
  }
  await stream('warm', 0, tokens);
  await Promise.all(Array.from({ length: streams }, (_, number) => stream('stream', number, tokens)));
  await stream('cancel', 0, cancelTokens);
  const plain = begin('node-openai', 'plain');
  const answer = await ask(plain, plainTokens, {});
  Object.assign(plain, { status: 200, id: answer.id });
  openaiUsage(plain, answer.usage);
  end(plain);
  const error = begin('node-openai', 'error');
  await ask(error, 8, { messages: 'not a list', stream: true }).catch((refused) => { error.status = refused.status; });
  end(error);
}

async function anthropic() {
  const client = new Anthropic({ baseURL: base, apiKey, maxRetries: 0, ...transport });
  const ask = (truth, max_tokens, more) =>
    client.messages.create({ model: truth.model, messages, max_tokens, ...llama, ...more }, options(truth));

  async function stream(kind, number, limit) {
    const truth = begin('node-anthropic', kind, number);
    const events = await ask(truth, limit, { stream: true });
    truth.status = 200;
    for await (const event of events) {
      if (event.type === 'message_start') {
        truth.id = event.message.id;
        anthropicUsage(truth, event.message.usage);
      }
      if (event.type === 'content_block_delta' && event.delta.text) truth.outputs_ns.push(now());
      if (event.type === 'message_delta') anthropicUsage(truth, event.usage);
      if (enough(truth)) break;
    }
    end(truth);
  }
  await stream('warm', 0, tokens);
  await Promise.all(Array.from({ length: streams }, (_, number) => stream('stream', number, tokens)));
  await stream('cancel', 0, cancelTokens);
  const plain = begin('node-anthropic', 'plain');
  const answer = await ask(plain, plainTokens, {});
  Object.assign(plain, { status: 200, id: answer.id });
  anthropicUsage(plain, answer.usage);
  end(plain);
  const error = begin('node-anthropic', 'error');
  await ask(error, 8, { messages: [{ role: 'user', content: 5 }] }).catch((refused) => { error.status = refused.status; });
  end(error);
}

await openai();
await anthropic();
