// Vercel's AI SDK: @ai-sdk/openai by its default, which is Responses, and by `.chat`; @ai-sdk/anthropic.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { SLUICE_URL, SLUICE_KEY, SLUICE_MODEL } = process.env;
const openai = createOpenAI({ baseURL: `${SLUICE_URL}/v1`, apiKey: SLUICE_KEY });
const anthropic = createAnthropic({ baseURL: `${SLUICE_URL}/v1`, apiKey: SLUICE_KEY });
const prompt = "How is the weather in Paris?";
const asked = { prompt, maxRetries: 0, maxOutputTokens: 200 };
const City = z.object({ name: z.literal("Paris"), inhabitants: z.number().int() });
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.literal("Paris") }),
  execute: async ({ city }) => `Rain in ${city}, 12 degrees.`,
});

async function plain(model) {
  const done = await generateText({ model, ...asked });
  return { text: done.text, tokens: done.usage.outputTokens };
}

async function streamed(model) {
  const deltas = [];
  let failure = null;
  const running = streamText({ model, ...asked, onError: ({ error }) => { failure = error; } });
  for await (const delta of running.textStream) deltas.push(delta);
  if (failure) throw failure;
  return { deltas };
}

async function agent(model) {
  const done = await generateText({ model, ...asked, tools: { get_weather }, stopWhen: stepCountIs(5) });
  const call = done.steps[0].toolCalls[0];
  return { call: [call.toolName, call.input], text: done.text };
}

async function agent_streamed(model) {
  let failure = null;
  const onError = ({ error }) => { failure = error; };
  const running = streamText({ model, ...asked, tools: { get_weather }, stopWhen: stepCountIs(5), onError });
  await running.consumeStream();
  if (failure) throw failure;
  const call = (await running.steps)[0].toolCalls[0];
  return { call: [call.toolName, call.input], text: await running.text };
}

async function agent_typed(model) {
  const output = Output.object({ schema: City });
  // By their names it knows which of Anthropic's models answer by a schema.
  const providerOptions = { anthropic: { structuredOutputMode: "outputFormat" } };
  const tools = { get_weather };
  const done = await generateText({ model, ...asked, tools, stopWhen: stepCountIs(5), output, providerOptions });
  return { turns: done.steps.map((step) => step.toolCalls.map((call) => call.toolName)), ...done.output };
}

async function object(model) {
  return (await generateObject({ model, ...asked, schema: City })).object;
}

const named = (name, ability) => Object.defineProperty(ability, "name", { value: name });
const abilities = [];
for (const [name, model] of [
  ["responses", openai(SLUICE_MODEL)],
  ["chat", openai.chat(SLUICE_MODEL)],
  ["messages", anthropic(SLUICE_MODEL)],
]) {
  for (const ability of [plain, streamed, agent, agent_streamed, agent_typed, object]) {
    abilities.push(named(`${name}_${ability.name}`, () => ability(model)));
  }
}
