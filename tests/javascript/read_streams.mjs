// Reads a stream of each given queue until the message "end"; prints the messages of each, as JSON.
const { URL_: url, KEY: key, APPLICATION: application, CLIENT: client, QUEUES } = process.env;
const { Queuey } = await import(client);
const queuey = new Queuey(url, application, { key });

async function read(queue) {
  const found = [];
  let opened = 0;
  for await (const message of queuey.stream(queue, { onState: (state) => (opened += state === "open") })) {
    found.push(message.body);
    if (message.body === "end") break;
  }
  return { found, opened };
}

console.log("reading");
console.log(JSON.stringify(await Promise.all(JSON.parse(QUEUES).map(read))));
