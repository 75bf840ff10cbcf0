// One turn of a chat as LibreChat makes it with a custom endpoint: streamed, with an image and a tool whose
// result is sent back. Prints the texts as they come, then a line of JSON.
const { ChatOpenAI } = require("./node_modules/@librechat/agents/dist/cjs/llm/openai/index.cjs");
const { HumanMessage, ToolMessage } = require("@langchain/core/messages");

const { apiKey, baseURL, model, text, image, tool } = JSON.parse(process.argv[2]);

async function answer(bound, messages) {
  let whole;
  for await (const chunk of await bound.stream(messages)) {
    whole = whole === undefined ? chunk : whole.concat(chunk);
    process.stdout.write(chunk.content);
  }
  return whole;
}

async function main() {
  const llm = new ChatOpenAI({ model, apiKey, streaming: true, streamUsage: true, configuration: { baseURL } });
  const bound = llm.bindTools([tool]);
  const parts = [
    { type: "text", text },
    { type: "image_url", image_url: { url: image, detail: "auto" } },
  ];
  const messages = [new HumanMessage({ content: parts })];
  const asked = await answer(bound, messages);
  messages.push(asked);
  for (const call of asked.tool_calls) {
    messages.push(new ToolMessage({ tool_call_id: call.id, content: "rain" }));
  }
  const last = await answer(bound, messages);
  const calls = asked.tool_calls.map(({ name, args }) => ({ name, args }));
  console.log(`\n${JSON.stringify({ calls, content: last.content, usage: last.usage_metadata })}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
