// Reads a stream of each given queue until the message "end"; prints the messages and states of each, as JSON. On SIGTERM
// it prints what it has.
const { URL_: url, KEY: key, APPLICATION: application, CLIENT: client, QUEUES } = process.env;
const { Queuey } = await import(client);
const queuey = new Queuey(url, application, { key });
const streams = JSON.parse(QUEUES).map((queue) => ({ queue, found: [], states: [] }));
const printStreams = () => console.log(JSON.stringify(streams));
process.once("SIGTERM", () => {
  printStreams();
  process.exit(1);
});

async function read({ queue, found, states }) {
  const onState = (state, error) => states.push(`${new Date().toISOString()} ${state} ${error ?? ""}`.trim());
  for await (const message of queuey.stream(queue, { onState })) {
    found.push(message.body);
    if (message.body === "end") break;
  }
}

console.log("reading");
await Promise.all(streams.map(read));
printStreams();
