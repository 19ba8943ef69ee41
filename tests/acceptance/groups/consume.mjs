// A member of a group by the JavaScript client, as the programs of deploy/examples/groups: see test_programs.py.
const { API, KEY, CLIENT } = process.env;
const { Queuey } = await import(CLIENT);
const [, url, application] = API.match(/^(.*)\/v1\/(.*)$/);
const [group, queue] = process.argv.slice(2);
const controller = new AbortController();
process.on("SIGTERM", () => controller.abort());
const options = { session: 6, signal: controller.signal };
for await (const message of new Queuey(url, application, { key: KEY }).consume(group, queue, options)) {
  console.log(message.partition, message.message_id, message.body);
  await message.commit();
}
