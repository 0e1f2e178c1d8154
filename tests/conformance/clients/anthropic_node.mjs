// @anthropic-ai/sdk: Messages, and its runner of tools.

import Anthropic from "@anthropic-ai/sdk";

const { SLUICE_URL, SLUICE_KEY, SLUICE_MODEL: model } = process.env;
const client = new Anthropic({ baseURL: SLUICE_URL, apiKey: SLUICE_KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "How is the weather in Paris?" }];
const input_schema = { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"] };
const weather = { name: "get_weather", description: "The weather in a city.", input_schema };
const max_tokens = 200;

async function whole() {
  const done = await client.messages.create({ model, max_tokens, messages });
  return { text: done.content[0].text, tokens: done.usage.output_tokens };
}

async function stream() {
  const deltas = [];
  const streamed = client.messages.stream({ model, max_tokens, messages }).on("text", (text) => deltas.push(text));
  return { text: await streamed.finalText(), deltas };
}

async function tools() {
  const asked = { model, max_tokens, tools: [weather] };
  const first = await client.messages.stream({ ...asked, messages }).finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  const content = [{ type: "tool_result", tool_use_id: call.id, content: "Rain, 12 degrees." }];
  const turns = [...messages, { role: "assistant", content: first.content }, { role: "user", content }];
  const last = await client.messages.create({ ...asked, messages: turns });
  return { call: [call.name, call.input], text: last.content[0].text };
}

async function count_tokens() {
  const counted = await client.messages.countTokens({ model, messages });
  const { usage } = await client.messages.create({ model, max_tokens: 16, messages });
  return { counted: counted.input_tokens, used: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) };
}

async function errors() {
  const kind = async (asked) => asked.then(() => null, (error) => error.constructor.name);
  const stranger = new Anthropic({ baseURL: SLUICE_URL, apiKey: "sk-nothing", maxRetries: 0 });
  return {
    model: await kind(client.messages.create({ model: "nothing", max_tokens, messages })),
    key: await kind(stranger.messages.create({ model, max_tokens, messages })),
    field: await kind(client.messages.create({ model, max_tokens: 0, messages })),
  };
}

const abilities = [whole, stream, tools, count_tokens, errors];
