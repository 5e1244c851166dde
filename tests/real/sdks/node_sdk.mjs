// Every call that one Node SDK can make, against the local provider; writes a view per call (see view.py).
//
// Usage: node node_sdk.mjs SDK --port N --front NAME --out FILE  (CACHE = folder with node_modules; NODE_EXTRA_CA_CERTS)
// All of them speak HTTP/1.1: Node's fetch offers HTTP/2 only where an application turns it on.
import dns from 'node:dns';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { port: { type: 'string' }, front: { type: 'string' }, out: { type: 'string' } },
});
const { port, front, out } = values;
const cache = path.resolve(process.env.CACHE);
const require = createRequire(path.join(cache, 'from-here.js'));
const API_KEY = 'sk-planted-tokengauge-secret-5c1e';
const PROMPT = 'planted-prompt-phrase: go on about the harbour and its clocks';
const messages = [{ role: 'user', content: PROMPT }];
const CANCEL_AFTER = 4;
const STREAMED = ['warm', 'stream', 'tool', 'cancel', 'fault', 'error'];

// Every name is loopback, in this process only: so that the Host header is a provider's own.
dns.lookup = (host, options, done) => {
  const [given, answer] = typeof options === 'function' ? [{}, options] : [options, done];
  process.nextTick(() => (given.all ? answer(null, [{ address: '127.0.0.1', family: 4 }]) : answer(null, '127.0.0.1', 4)));
};

// Whole milliseconds, and a pause between the two readings, make the difference too small, never too large.
let epoch = 0n;
for (const until = Date.now() + 5; Date.now() < until; ) {
  const seen = BigInt(Date.now()) * 1_000_000n - process.hrtime.bigint();
  if (seen > epoch) epoch = seen;
}
const now = () => Number(process.hrtime.bigint() + epoch); // beyond 2^53 the last 256 ns are lost: enough here
const base = (host) => `https://${host}:${port}`;

class View {
  constructor(sdk, wire, kind) {
    this.case = kind;
    const client = `node-${sdk}.node.h1.${front}`;
    this.model = `${client}.${wire}-${kind}`;
    this.streaming = STREAMED.includes(kind);
    this.line = {
      model: this.model, client, sdk: `node-${sdk}`, mode: 'node', front, http: 'h1', wire, case: kind, begin_ns: now(),
      outputs_ns: [], end_ns: null, id: null, finish: null, input_tokens: null, output_tokens: null, status: 200, error: null,
    };
  }

  output(shown) {
    if (shown) this.line.outputs_ns.push(now());
    return this.case === 'cancel' && this.line.outputs_ns.length >= CANCEL_AFTER;
  }

  told(id, finish, tokens) {
    this.line.id = id ?? this.line.id;
    this.line.finish = finish ?? this.line.finish;
    if (tokens && tokens[0] != null) [this.line.input_tokens, this.line.output_tokens] = tokens;
  }

  raised(error) {
    this.line.status = error.status ?? error.statusCode ?? error.status_code ?? this.line.status;
    this.line.error = `${error.constructor.name}: ${error.message}`.slice(0, 300);
  }

  write() {
    if (this.case === 'warm') return;
    this.line.end_ns = now();
    fs.appendFileSync(out, `${JSON.stringify(this.line)}\n`);
  }
}

const both = (usage, input, output) => usage && [usage[input], usage[output]];

const SDKS = {
  async openai() {
    const { OpenAI } = require('openai');
    const client = new OpenAI({ baseURL: `${base('api.openai.com')}/v1`, apiKey: API_KEY, maxRetries: 0 });
    const all = ['stream', 'plain', 'tool', 'error', 'cancel', 'fault'];
    return { chat: [all, chat], responses: [all, responses] };

    async function chat(view) {
      const asked = { model: view.model, messages };
      if (!view.streaming) {
        const answer = await client.chat.completions.create(asked);
        view.told(answer.id, answer.choices[0].finish_reason, both(answer.usage, 'prompt_tokens', 'completion_tokens'));
        return;
      }
      const more = { stream: true, stream_options: { include_usage: true } };
      for await (const chunk of await client.chat.completions.create({ ...asked, ...more })) {
        view.told(chunk.id, chunk.choices[0]?.finish_reason, both(chunk.usage, 'prompt_tokens', 'completion_tokens'));
        const delta = chunk.choices[0]?.delta;
        if (view.output(delta?.content || delta?.tool_calls)) return; // leaving the loop aborts the request
      }
    }

    async function responses(view) {
      const asked = { model: view.model, input: PROMPT };
      if (!view.streaming) {
        const answer = await client.responses.create(asked);
        view.told(answer.id, answer.status, both(answer.usage, 'input_tokens', 'output_tokens'));
        return;
      }
      for await (const event of await client.responses.create({ ...asked, stream: true })) {
        const named = event.type === 'response.output_item.added' && event.item.name;
        if (view.output(named || (event.type.endsWith('.delta') && event.delta))) return;
        const done = event.response;
        if (event.type === 'response.completed') {
          view.told(done.id, done.status, both(done.usage, 'input_tokens', 'output_tokens'));
        }
        if (event.type === 'response.failed') throw new Error(done.error.code);
      }
    }
  },

  async anthropic() {
    const { Anthropic } = require('@anthropic-ai/sdk');
    const client = new Anthropic({ baseURL: base('api.anthropic.com'), apiKey: API_KEY, maxRetries: 0 });
    const total = (usage) => [
      usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0),
      usage.output_tokens,
    ];
    return { messages: [['stream', 'plain', 'tool', 'error', 'cancel', 'fault'], ask] };

    async function ask(view) {
      const asked = { model: view.model, messages, max_tokens: 999 };
      if (!view.streaming) {
        const answer = await client.messages.create(asked);
        view.told(answer.id, answer.stop_reason, total(answer.usage));
        return;
      }
      for await (const event of await client.messages.create({ ...asked, stream: true })) {
        if (event.type === 'message_start') view.told(event.message.id);
        if (event.type === 'content_block_start') view.output(event.content_block.name);
        if (event.type === 'message_delta') view.told(null, event.delta.stop_reason, total(event.usage));
        if (event.type !== 'content_block_delta') continue;
        const { text, thinking, partial_json: json } = event.delta;
        if (view.output(text || thinking || json)) return;
      }
    }
  },

  async google() {
    const { GoogleGenAI } = require('@google/genai');
    const options = { baseUrl: base('generativelanguage.googleapis.com') };
    const client = new GoogleGenAI({ apiKey: API_KEY, httpOptions: options });
    const told = (view, { responseId, candidates, usageMetadata: usage }) => {
      const output = (usage?.candidatesTokenCount ?? 0) + (usage?.thoughtsTokenCount ?? 0);
      view.told(responseId, candidates?.[0]?.finishReason, output ? [usage.promptTokenCount, output] : null);
    };
    return { generate: [['stream', 'plain', 'tool', 'error', 'cancel'], ask] };

    async function ask(view) {
      const abort = new AbortController();
      const asked = { model: view.model, contents: PROMPT, config: { abortSignal: abort.signal } };
      if (!view.streaming) return void told(view, await client.models.generateContent(asked));
      for await (const chunk of await client.models.generateContentStream(asked)) {
        told(view, chunk);
        const parts = chunk.candidates?.[0]?.content?.parts ?? [];
        if (view.output(parts.some((part) => part.text || part.functionCall))) return void abort.abort();
      }
    }
  },

  async ollama() {
    const { Ollama } = require('ollama');
    const client = new Ollama({ host: base('ollama.rig.test') });
    return { chat: [['stream', 'plain', 'tool', 'error', 'cancel', 'fault'], ask] };

    async function ask(view) {
      const answer = await client.chat({ model: view.model, messages, stream: view.streaming });
      const last = (line) => view.told(null, line.done_reason, [line.prompt_eval_count, line.eval_count]);
      if (!view.streaming) return void last(answer);
      try {
        for await (const line of answer) {
          const { content, thinking, tool_calls: calls } = line.message ?? {};
          if (view.output(content || thinking || calls)) return void answer.abort();
          if (line.done) last(line);
        }
      } catch (error) {
        if (error.name !== 'AbortError') throw error;
      }
    }
  },

  async cohere() {
    const { CohereClientV2 } = require('cohere-ai');
    const client = new CohereClientV2({ token: API_KEY, environment: base('api.cohere.com') });
    const units = (usage) => both(usage?.billedUnits, 'inputTokens', 'outputTokens');
    return { chat_v2: [['stream', 'plain', 'tool', 'error'], ask] };

    async function ask(view) {
      const asked = { model: view.model, messages };
      if (!view.streaming) {
        const answer = await client.chat(asked, { maxRetries: 0 });
        return void view.told(answer.id, answer.finishReason, units(answer.usage));
      }
      for await (const event of await client.chatStream(asked, { maxRetries: 0 })) {
        const message = event.delta?.message;
        if (event.type === 'message-start') view.told(event.id);
        if (event.type === 'content-delta') view.output(message.content.text || message.content.thinking);
        if (event.type === 'tool-plan-delta') view.output(message.toolPlan);
        if (event.type === 'tool-call-start' || event.type === 'tool-call-delta') view.output(message.toolCalls);
        if (event.type === 'message-end') view.told(null, event.delta.finishReason, units(event.delta.usage));
      }
    }
  },

  async mistral() {
    const file = path.join(cache, 'node_modules/@mistralai/mistralai/esm/index.js');
    const { Mistral } = await import(pathToFileURL(file));
    const client = new Mistral({ apiKey: API_KEY, serverURL: base('api.mistral.ai'), retryConfig: { strategy: 'none' } });
    return { chat: [['stream', 'plain', 'tool', 'error', 'cancel'], ask] };

    async function ask(view) {
      const asked = { model: view.model, messages };
      if (!view.streaming) {
        const answer = await client.chat.complete(asked);
        const counts = both(answer.usage, 'promptTokens', 'completionTokens');
        return void view.told(answer.id, answer.choices[0].finishReason, counts);
      }
      for await (const { data: chunk } of await client.chat.stream(asked)) {
        const choice = chunk.choices[0];
        const counts = chunk.usage?.completionTokens && both(chunk.usage, 'promptTokens', 'completionTokens');
        view.told(chunk.id, choice?.finishReason, counts);
        if (view.output(choice?.delta.content || choice?.delta.toolCalls)) return;
      }
    }
  },
};

async function one(sdk, wire, kind, ask) {
  const view = new View(sdk, wire, kind);
  await ask(view).catch((error) => view.raised(error));
  view.write();
}

const sdk = positionals[0];
for (const [wire, [cases, ask]] of Object.entries(await SDKS[sdk]())) {
  await one(sdk, wire, 'warm', ask);
  await Promise.all(cases.filter((kind) => kind !== 'cancel').map((kind) => one(sdk, wire, kind, ask)));
  if (cases.includes('cancel')) await one(sdk, wire, 'cancel', ask);
}
process.exit(0); // without waiting for kept-alive connections
