// One turn of a chat as the AI SDK makes it with a server of Open Responses: streamed, with an image and a tool
// whose result is sent back. Prints the texts as they come, then a line of JSON.
import { createOpenResponses } from "@ai-sdk/open-responses";

const { apiKey, baseURL, model, text, image, tool } = JSON.parse(process.argv[2]);

async function answer(llm, prompt, tools) {
  const parts = [];
  const { stream } = await llm.doStream({ prompt, tools });
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") process.stdout.write(part.delta);
    parts.push(part);
  }
  return parts;
}

const llm = createOpenResponses({ name: "luxx", url: `${baseURL}/responses`, apiKey })(model);
const tools = [{ type: "function", name: tool.name, description: tool.description, inputSchema: tool.parameters }];
const data = { type: "data", data: image.split(",")[1] };
const file = { type: "file", mediaType: "image/png", data };
const prompt = [{ role: "user", content: [{ type: "text", text }, file] }];
const asked = (await answer(llm, prompt, tools)).filter((part) => part.type === "tool-call");
const calls = asked.map(({ toolName, toolCallId, input }) => ({ toolName, toolCallId, input: JSON.parse(input) }));
prompt.push({ role: "assistant", content: calls.map((call) => ({ type: "tool-call", ...call })) });
const output = { type: "text", value: "rain" };
prompt.push({
  role: "tool",
  content: calls.map(({ toolCallId, toolName }) => ({ type: "tool-result", toolCallId, toolName, output })),
});
const last = await answer(llm, prompt, tools);
const content = last.filter((part) => part.type === "text-delta").map((part) => part.delta).join("");
const { usage, finishReason } = last.find((part) => part.type === "finish");
console.log(`\n${JSON.stringify({ calls, content, usage, finishReason })}`);
