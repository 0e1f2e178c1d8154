// openai for Node: chats, their helper for tools, and Responses.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { SLUICE_URL, SLUICE_KEY, SLUICE_MODEL: model } = process.env;
const client = new OpenAI({ baseURL: `${SLUICE_URL}/v1`, apiKey: SLUICE_KEY, maxRetries: 0 });
const content = "How is the weather in Paris?";
const messages = [{ role: "user", content }];
const City = z.object({ name: z.literal("Paris"), inhabitants: z.number().int() });
const parameters = { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"] };
const description = "The weather in a city.";

async function chat() {
  const done = await client.chat.completions.create({ model, messages });
  return { text: done.choices[0].message.content, tokens: done.usage.completion_tokens };
}

async function stream() {
  const deltas = [];
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    if (chunk.choices[0]?.delta.content) deltas.push(chunk.choices[0].delta.content);
  }
  return { deltas };
}

async function tools() {
  const called = [];
  const run = async ({ city }) => {
    called.push(["get_weather", { city }]);
    return `Rain in ${city}, 12 degrees.`;
  };
  const tool = { type: "function", function: { name: "get_weather", description, parameters, parse: JSON.parse, function: run } };
  const runner = client.chat.completions.runTools({ model, messages, tools: [tool], stream: true });
  const text = await runner.finalContent();
  return { call: called[0], turns: runner.messages.map((message) => message.role), text };
}

async function structured() {
  const done = await client.chat.completions.parse({ model, messages, response_format: zodResponseFormat(City, "city") });
  return done.choices[0].message.parsed;
}

async function responses() {
  const done = await client.responses.create({ model, input: content });
  const again = await client.responses.retrieve(done.id);
  return { text: done.output_text, again: again.output_text };
}

async function responses_stream() {
  const deltas = [];
  const streamed = client.responses.stream({ model, input: content });
  for await (const event of streamed) if (event.type === "response.output_text.delta") deltas.push(event.delta);
  return { deltas, text: (await streamed.finalResponse()).output_text };
}

async function responses_tools() {
  const tools = [{ type: "function", name: "get_weather", description, parameters, strict: false }];
  const first = await client.responses.create({ model, input: content, tools });
  const call = first.output.find((item) => item.type === "function_call");
  const result = { type: "function_call_output", call_id: call.call_id, output: "Rain, 12 degrees." };
  const last = await client.responses.create({ model, input: [{ role: "user", content }, ...first.output, result], tools });
  return { call: [call.name, JSON.parse(call.arguments)], text: last.output_text };
}

async function responses_structured() {
  const done = await client.responses.parse({ model, input: content, text: { format: zodTextFormat(City, "city") } });
  return done.output_parsed;
}

async function embeddings() {
  const vectors = async (fields) => {
    const done = await client.embeddings.create({ model: process.env.SLUICE_EMBEDS, input: ["one", "two", "one"], ...fields });
    return done.data.map((item) => item.embedding);
  };
  return { vectors: await vectors({}), short: await vectors({ dimensions: 32 }) };
}

async function errors() {
  const kind = async (asked) => asked.then(() => null, (error) => error.constructor.name);
  const stranger = new OpenAI({ baseURL: `${SLUICE_URL}/v1`, apiKey: "sk-nothing", maxRetries: 0 });
  return {
    model: await kind(client.chat.completions.create({ model: "nothing", messages })),
    key: await kind(stranger.chat.completions.create({ model, messages })),
    field: await kind(client.chat.completions.create({ model, messages, temperature: 9 })),
  };
}

const abilities = [chat, stream, tools, structured, responses, responses_stream, responses_tools, responses_structured, embeddings, errors];
