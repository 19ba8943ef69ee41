// Runs the client against a running service, which test_node.py starts and whose address it passes.
import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

const { URL_: url, KEY: key, APPLICATION: application, CLIENT: client } = process.env;
const { Queuey, QueueyError, isRead } = await import(client);
const queuey = new Queuey(url, application, { key });
const fresh = async (fields) => (await queuey.createQueue(`js-${crypto.randomUUID().slice(0, 8)}`, fields)).queue_name;

test("says who the caller is", async () => {
  const me = await queuey.me();
  assert.deepEqual(me.names, [`app:${application}`]);
  assert.deepEqual(await queuey.myQueues(), []);
});

test("sends and reads text, bytes and JSON", async () => {
  const queue = await fresh();
  await queuey.send(queue, "ü", { ttl: 60, headers: { colour: "red" }, contentType: "text/x-note" });
  await queuey.send(queue, new Uint8Array([255, 0]));
  await queuey.send(queue, { a: [1, null] });
  const { messages, cursor, more } = await queuey.read(queue);
  assert.deepEqual(messages.map((each) => each.body), ["ü", new Uint8Array([255, 0]), { a: [1, null] }]);
  assert.deepEqual([messages[0].headers, messages[0].content_type, more], [{ colour: "red" }, "text/x-note", false]);
  await queuey.send(queue, "later");
  assert.deepEqual((await queuey.read(queue, { since: cursor })).messages.map((each) => each.body), ["later"]);
  await queuey.delete(queue, messages, []);
  assert.deepEqual((await queuey.read(queue)).messages.map((each) => each.body), ["later"]);
});

test("JSON has its type, and every holder of bytes is sent as its bytes", async () => {
  const queue = await fresh();
  const bytes = new Uint8Array([9, 255, 0, 9]);
  await queuey.send(queue, { messages: [{ body: "a" }] }, { contentType: "application/json" });
  await queuey.send(queue, null, { contentType: "application/x-nothing" });
  await queuey.send(queue, bytes.buffer);
  await queuey.send(queue, new DataView(bytes.buffer, 1, 2));
  await queuey.send(queue, new Uint16Array([65535]));
  await queuey.send(queue, new Blob([bytes], { type: "image/x" }), { headers: { blank: "" } });
  const { messages } = await queuey.read(queue);
  assert.deepEqual(
    messages.map((each) => [each.body, each.content_type]),
    [
      [{ messages: [{ body: "a" }] }, "application/json"],
      [null, "application/x-nothing"],
      [bytes, "application/octet-stream"],
      [bytes.slice(1, 3), "application/octet-stream"],
      [new Uint8Array([255, 255]), "application/octet-stream"],
      [bytes, "image/x"],
    ],
  );
  assert.deepEqual(messages[5].headers, { blank: "" });
});

test("keys and headers that HTTP cannot carry are refused at once", async () => {
  const queue = await fresh();
  for (const text of ["ключ", "grün", " a", "a\nb"]) {
    for (const options of [{ key: text }, { headers: { colour: text } }, { contentType: text }, { idempotencyKey: text }]) {
      await assert.rejects(queuey.send(queue, "a", options), { name: "TypeError", message: / is / });
    }
  }
  assert.deepEqual((await queuey.read(queue)).messages, []);
});

test("a repeated send stores one message", async () => {
  const queue = await fresh();
  let calls = 0;
  const broken = new Queuey(url, application, {
    key,
    fetch: async (...asked) => {
      const answer = await fetch(...asked);
      calls += 1;
      if (calls < 3) throw new TypeError("broke off");
      return answer;
    },
  });
  await broken.send(queue, "once");
  assert.equal(calls, 3);
  assert.equal((await queuey.read(queue)).messages.length, 1);
});

test("claims, releases and acknowledges", async () => {
  const queue = await fresh();
  await queuey.send(queue, "job");
  const [first] = await queuey.claim(queue, { ttl: 30 });
  assert.deepEqual([first.body, first.deliveries, await queuey.claim(queue)], ["job", 1, []]);
  await queuey.release(queue, first);
  const [again] = await queuey.claim(queue, { wait: 5 });
  assert.deepEqual([again.deliveries, again.handed_out], [2, undefined]);
  await queuey.release(queue, [again], { begun: false });
  const [last] = await queuey.claim(queue, { wait: 5 });
  assert.deepEqual([last.deliveries, last.handed_out], [2, 3]);
  await assert.rejects(queuey.acknowledge(queue, first), (error) => error.status === 409);
  await queuey.acknowledge(queue, last);
  assert.deepEqual(await queuey.claim(queue), []);
});

test("cancels and retries jobs", async () => {
  const queue = await fresh();
  const { key } = await queuey.send(queue, "job", { delay: 600 });
  assert.equal(await queuey.retryJob(queue, key), "waiting");
  const [job] = await queuey.claim(queue, { ttl: 30, wait: 5 });
  assert.deepEqual((await queuey.renew(queue, 60, job)).map((each) => each.cancelled), [undefined]);
  assert.equal(await queuey.cancelJob(queue, job), "claimed");
  assert.deepEqual((await queuey.renew(queue, 60, job)).map((each) => each.cancelled), [true]);
  await queuey.release(queue, job);
  assert.equal(await queuey.cancelJob(queue, job), "done");
});

test("errors say what is wrong", async () => {
  await assert.rejects(queuey.read("none"), (error) => {
    assert.ok(error instanceof QueueyError);
    assert.deepEqual([error.status, error.code, error.outcome], [404, "InvalidQueueName", "none"]);
    return /does not exist/.test(error.message);
  });
  const nobody = new Queuey("http://127.0.0.1:1", "x");
  await assert.rejects(nobody.claim("q"), (error) => error.status === 0 && error.outcome === "unknown");
});

/** Reads this many messages of a stream. */
async function some(stream, count) {
  const found = [];
  for await (const message of stream) {
    found.push(message.body);
    if (found.length === count) break;
  }
  return found;
}

test("streams new messages, of one queue and of several", async () => {
  const [one, two] = [await fresh(), await fresh({ partitions: 3 })];
  await queuey.send(one, "before");
  const both = some(queuey.stream([one, two], { since: "now" }), 2);
  const single = some(queuey.stream(one), 2);
  await sleep(300);
  await queuey.send(one, "a");
  await queuey.send(two, "b");
  assert.deepEqual([await single, (await both).sort()], [["before", "a"], ["a", "b"]]);
});

test("early messages come at once, marked, and each once", async () => {
  const queue = await fresh({ read_delay: 1 });
  const found = [];
  const began = Date.now();
  const reading = (async () => {
    for await (const message of queuey.stream(queue, { early: true })) {
      found.push([message.body, message.early ?? false]);
      if (message.body === "last") break;
    }
  })();
  await queuey.send(queue, "a");
  await queuey.send(queue, "b");
  const page = await queuey.read(queue, { early: true, wait: 5 });
  assert.equal(page.messages[0].early, true);
  await sleep(2500 - (Date.now() - began));
  await queuey.send(queue, "last");
  await reading;
  assert.deepEqual(found, [["a", true], ["b", true], ["last", true]]);
});

test("an interrupted stream resumes without gaps and duplicates", async () => {
  const queue = await fresh();
  let opened = 0;
  // Each connection breaks off after some bytes, in the middle of an event.
  const brittle = async (target, options) => {
    const answer = await fetch(target, options);
    if (!String(options.headers.Accept).includes("event-stream")) return answer;
    opened += 1;
    let left = 700;
    const cut = new TransformStream({
      transform(chunk, controller) {
        controller.enqueue(chunk.slice(0, left));
        left -= chunk.length;
        if (left <= 0) controller.error(new TypeError("broke off"));
      },
    });
    return new Response(answer.body.pipeThrough(cut), { status: answer.status, headers: answer.headers });
  };
  const unlucky = new Queuey(url, application, { key, fetch: brittle });
  const reading = some(unlucky.stream(queue), 30);
  for (let number = 0; number < 30; number += 1) await queuey.send(queue, `${number}`);
  assert.deepEqual(await reading, Array.from({ length: 30 }, (_, number) => `${number}`));
  assert.ok(opened > 3);
});

test("a stream ends on demand, and returns its position", async () => {
  const queue = await fresh();
  const controller = new AbortController();
  const states = [];
  const stream = queuey.stream(queue, { signal: controller.signal, onState: (state) => states.push(state) });
  const next = stream.next();
  await sleep(200);
  controller.abort();
  assert.deepEqual([await next, states], [{ done: true, value: undefined }, ["open"]]);
  await assert.rejects(some(queuey.stream("none"), 1), (error) => error.status === 404);
});

test("a queue that goes ends no stream of a list, whatever its number of partitions", async () => {
  const remove = async (queue) => {
    const headers = { Authorization: `Application ${key}` };
    assert.ok((await fetch(`${url}/v1/${application}/${queue}`, { method: "DELETE", headers })).ok);
  };
  for (const partitions of [1, 2]) {
    const [queue, other] = [await fresh({ partitions }), await fresh()];
    for (const queues of [[queue], [queue, other]]) {
      const gone = [];
      const states = [];
      const controller = new AbortController();
      const options = { signal: controller.signal, onGone: (each) => gone.push(each), onState: (state) => states.push(state) };
      const reading = some(queuey.stream(queues, options), 9);
      while (!states.length) await sleep(10);
      await remove(queue);
      while (!gone.length) await sleep(10);
      await sleep(100);
      assert.deepEqual([gone.length, gone[0].queue_name, states], [1, queue, ["open"]]);
      controller.abort();
      await reading;
      await queuey.createQueue(queue, { partitions });
    }
  }
});

test("marks messages as read, and streams notify other windows", async () => {
  const queue = await fresh({ partitions: 2 });
  for (const partition of [1, 2, 1, 2]) await queuey.send(queue, "x", { partition });
  const { messages } = await queuey.read(queue);
  const told = [];
  const controller = new AbortController();
  const options = { signal: controller.signal, onRead: (unread) => told.push(unread) };
  const windows = [queue, [queue]].map((each) => some(queuey.stream(each, options), 9));
  while (told.length < 2) await sleep(10);
  const without = ({ cursor, ...rest }) => (assert.match(cursor, /^[0-9a-f]{32}/), rest);
  for (const each of told) assert.deepEqual(without(each), { queue_name: queue, read: {}, unread: 4, more: false });
  const { read, pending } = await queuey.markRead(queue, [messages[2], messages[0], messages[1]]);
  assert.deepEqual([read, pending], [{ 1: messages[2].message_id, 2: messages[1].message_id }, 0]);
  assert.deepEqual(messages.map((each) => isRead(each, read)), [true, true, true, false]);
  while (told.length < 4) await sleep(10);
  for (const each of told.slice(2)) assert.deepEqual(without(each), { queue_name: queue, read, unread: 1, more: false });
  controller.abort();
  await Promise.all(windows);
  assert.deepEqual((await queuey.markRead(queue, messages[0])).read, { 1: messages[2].message_id });
  const back = await queuey.markRead(queue, messages[0].message_id, { back: true });
  assert.equal(back.read[1], messages[0].message_id);
  const [counted, missing] = await queuey.unread([queue, "none"], { limit: 2 });
  assert.deepEqual([counted.unread, counted.more, Object.keys(missing.error_msg)], [2, true, ["InvalidQueueName"]]);
  assert.ok((await queuey.unread()).some((each) => each.queue_name === queue));
});

test("a badge that adds what arrives is right", async () => {
  for (const [options, name] of [[{}, "one"], [{ early: true, limit: 20 }, "several"]]) {
    const queue = await fresh({ read_delay: options.early ? 1 : 0 });
    const sent = [];
    const send = async (count) => {
      for (let left = count; left; left -= 1) sent.push((await queuey.send(queue, "x")).key);
    };
    await send(110);
    let messages = [];
    while (messages.length < 110) ({ messages } = await queuey.read(queue, { limit: 500, wait: 1 }));
    await queuey.markRead(queue, messages.slice(0, 80));
    const controller = new AbortController();
    let badge;
    const onRead = (count) => {
      badge = count;
    };
    const page = (async () => {
      const asked = { ...options, onRead, signal: controller.signal };
      for await (const message of queuey.stream(name === "one" ? queue : [queue], asked)) {
        if (badge && !badge.more && !isRead(message, badge.read)) badge.unread += 1;
      }
    })();
    const shows = async (count) => {
      const end = Date.now() + 30_000;
      while (badge?.unread !== count && Date.now() < end) await sleep(20);
      assert.deepEqual([name, badge?.unread, badge?.more], [name, count, false]);
    };
    try {
      await shows(30);
      await send(3);
      await shows(33);
      await queuey.delete(queue, sent.slice(100, 102));
      await shows(31);
      await queuey.delete(queue, sent.slice(0, 2), sent.slice(99, 100));
      await shows(30);
    } finally {
      controller.abort();
      await page;
    }
  }
});

test("marks order ids as queues do", () => {
  const ids = ["80", "ff", "00", "7f"].map((byte) => `51783387e91e11f1${byte.repeat(8)}`);
  for (const [place, id] of ids.entries()) {
    const below = ids.map((each) => isRead({ partition: 1, message_id: each }, { 1: id }));
    assert.deepEqual(below, ids.map((_, other) => other <= place));
  }
  assert.equal(isRead({ partition: 2, message_id: ids[0] }, { 1: ids[3] }), false);
});

test("a mark for an early message is set again", async () => {
  const id = "51783387e91e11f18080808080808080";
  const answers = [{ read: {}, pending: 0.01 }, { read: { 1: id }, pending: 0 }];
  const asked = [];
  const slow = new Queuey(url, application, {
    key,
    fetch: async (_, { body }) => {
      asked.push(JSON.parse(body));
      return Response.json(answers.shift());
    },
  });
  assert.deepEqual(await slow.markRead("q", { partition: 1, message_id: id }), { read: { 1: id }, pending: 0 });
  assert.deepEqual(asked, [{ until: `1:${id}` }, { until: `1:${id}` }]);
});

test("a new token is requested when the old one is refused", async () => {
  const tokens = [];
  const user = new Queuey(url, application, {
    token: ({ refresh }) => (refresh ? "new" : "old"),
    fetch: async (_, { headers }) => {
      tokens.push(headers.Authorization);
      return headers.Authorization === "Bearer new" ? Response.json({ names: ["ann"] }) : new Response("", { status: 401 });
    },
  });
  assert.deepEqual([await user.me(), tokens], [{ names: ["ann"] }, ["Bearer old", "Bearer new"]]);
  const refused = new Queuey(url, application, { token: "old", fetch: async () => new Response("", { status: 403 }) });
  await assert.rejects(refused.me(), (error) => error.status === 403);
});

test("the types declare what exists", async () => {
  const { readFile } = await import("node:fs/promises");
  const types = await readFile(new URL(client.replace(/\.js$/, ".d.ts")), "utf8");
  const written = [...types.split("export declare class Queuey {")[1].matchAll(/^ {2}(\w+)\(/gm)].map((each) => each[1]);
  assert.deepEqual(written.sort(), Object.getOwnPropertyNames(Queuey.prototype).sort());
});

test("jobs have a status, a state and a result, and waiting callers share a request", async () => {
  const queue = await fresh({ result_ttl: 60, max_deliveries: 1 });
  let asked = 0;
  const counting = (address, options) => fetch(address, ((asked += String(address).includes("/jobs/")), options));
  const other = new Queuey(url, application, { key, fetch: counting });
  const [first, second, failed] = [await other.send(queue, "a"), await other.send(queue, "b"), await other.send(queue, "c")];
  assert.deepEqual(Object.keys(first), ["key", "timestamp", "partition"]);
  assert.deepEqual([(await first.status()).status, await first.state()], ["waiting", null]);
  await assert.rejects(first.result({ timeout: 0.05 }), { code: "ResultTimeout" });
  asked = 0;
  const results = [...Array(50).fill(first), second].map((each) => each.result());
  const late = assert.rejects(failed.result(), (error) => error.code === "JobFailed" && error.job.status === "failed");
  await sleep(200);
  assert.ok(asked <= 3, `${asked} requests`);
  const claimed = await queuey.claim(queue, { limit: 3 });
  await queuey.acknowledgeWith(queue, claimed[0], { done: ["a"] });
  await queuey.acknowledgeWith(queue, claimed[1].receipt, null);
  await queuey.release(queue, claimed[2]);
  await queuey.claim(queue);
  assert.deepEqual(await Promise.all(results), [...Array(50).fill({ done: ["a"] }), null]);
  await late;
  assert.deepEqual((await queuey.jobs(queue, [first, `${second.partition}:${second.key}`])).map((each) => each.status), ["done", "done"]);
  await assert.rejects(other.result(queue, first, { signal: AbortSignal.abort(new Error("enough")) }), { message: "enough" });
});
