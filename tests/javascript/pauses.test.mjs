// How long the client waits before it retries, on a clock that the pauses themselves advance. See test_node.py.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

const { Queuey, QueueyError } = await import(process.env.CLIENT);
const SILENCE = 60_000;

let now = 0;
let pauses = [];
/** Whether a minute without a byte is over at once. */
let isImpatient = false;
const { setTimeout: later } = globalThis;
performance.now = () => now;
globalThis.setTimeout = (call, milliseconds, ...more) => {
  if (milliseconds === SILENCE) return later(call, isImpatient ? 50 : milliseconds, ...more);
  pauses.push(milliseconds);
  now += milliseconds;
  return later(call, 0, ...more);
};
beforeEach(() => {
  [now, pauses, isImpatient] = [0, [], false];
});

const event = (type, data) => `event: ${type}\ndata: ${JSON.stringify(data)}\n\n`;
const MESSAGE = event("message", { message_id: "a", partition: 1, body: "came" });

/** An answer with events that stays open. */
const open = (text) => new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode(text)) }));

/** Reads a stream of a service with these answers, then a message; returns how many requests service and issuer got. */
async function streamed(answers, token) {
  const count = { service: 0, issuer: 0 };
  const asked = ({ refresh }) => `token ${(count.issuer += 1)} ${refresh}`;
  const fetch = async () => answers[count.service++]?.() ?? open(MESSAGE);
  const queuey = new Queuey("http://127.0.0.1:9", "shop", { token: token ?? asked, fetch });
  for await (const message of queuey.stream("q")) {
    assert.equal(message.body, "came");
    return count;
  }
}

const times = (count, answer) => Array.from({ length: count }, () => answer);

for (const [name, answer] of [
  ["tokens that have ended", () => new Response(event("bye", { status: 401 }))],
  ["tokens that end soon, and have ended", () => new Response(event("expiring", {}) + event("bye", { status: 401 }))],
  ["streams that end at once", () => new Response("retry: 0\n")],
  ["streams without a body", () => new Response(null, { status: 204 })],
  ["a service that is away", () => new Response("", { status: 503 })],
]) {
  test(`${name}: at most one immediate renewal, then the usual pauses`, async () => {
    const count = await streamed(times(40, answer));
    assert.ok(count.service === 41 && count.issuer <= 41);
    assert.ok(pauses.filter((each) => each < 100).length <= 1, pauses.join());
    assert.ok(Math.max(...pauses) <= 5_100, pauses.join());
  });
}

test("a service that accepts a connection and is silent is asked again, and the silent request is aborted", async () => {
  isImpatient = true;
  const ended = [];
  const never = (name) => (_url, { signal }) =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => ended.push(name));
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  const empty = (_url, { signal }) => {
    signal.addEventListener("abort", () => ended.push("no byte"));
    return open("");
  };
  const answers = [never("no answer"), empty, () => open(MESSAGE)];
  const queuey = new Queuey("http://127.0.0.1:9", "shop", { key: "k", fetch: async (...args) => answers.shift()(...args) });
  const states = [];
  for await (const message of queuey.stream("q", { onState: (state, error) => states.push([state, error?.message]) })) {
    assert.equal(message.body, "came");
    break;
  }
  const silent = ["waiting", "nothing came for a minute"];
  assert.deepEqual(states, [silent, ["open", undefined], silent, ["open", undefined]]);
  assert.deepEqual(ended, ["no answer", "no byte"]);
});

test("failures are retried after growing pauses", async () => {
  await streamed(times(40, () => new Response(event("bye", { status: 401 }))));
  assert.ok(now > 30_000, pauses.join());
});

test("a token that is always about to expire is renewed once, and the stream is read", async () => {
  const count = await streamed([() => open(event("expiring", {})), () => open(event("expiring", {}) + MESSAGE)]);
  assert.deepEqual([count, pauses], [{ service: 2, issuer: 2 }, [0]]);
});

test("a long stream renews its token immediately, each time", async () => {
  const lasting = () => {
    now += 3_600_000;
    return open(event("expiring", {}));
  };
  const count = await streamed(times(5, lasting));
  assert.deepEqual([count.issuer, pauses], [6, [0, 0, 0, 0, 0]]);
});

test("a failing token function is retried like a failing connection", async () => {
  let asked = 0;
  const token = () => {
    if ((asked += 1) < 4) throw new TypeError("the issuer is away");
    return "token";
  };
  const count = await streamed([() => open(event("expiring", {})), () => open(MESSAGE)], token);
  assert.deepEqual([count.service, asked, pauses.length], [2, 5, 4]);
  const began = now;
  const away = new Queuey("http://127.0.0.1:9", "shop", { token: () => Promise.reject(new Error("away")) });
  await assert.rejects(away.me(), ({ code, outcome, cause }) => code === "NoToken" && outcome === "none" && cause.message === "away");
  assert.ok(now - began >= 28_990 && now - began <= 30_010, pauses.join());
});

test("a token function that throws a QueueyError with a status refuses, which ends a stream", async () => {
  const token = () => {
    throw new QueueyError("logged out", { status: 401 });
  };
  await assert.rejects(streamed([], token), { message: "logged out" });
  assert.deepEqual(pauses, []);
});

test("a token that cannot be renewed is used until it expires", async () => {
  const count = await streamed([() => open(event("expiring", {}) + MESSAGE)], "fixed");
  assert.deepEqual([count.service, pauses], [1, []]);
});

for (const seconds of ["2592000", "1e309", "99999999999999999999"]) {
  test(`Retry-After: ${seconds}`, async () => {
    const busy = () => new Response("", { status: 503, headers: { "Retry-After": seconds } });
    await streamed(times(3, busy));
    await assert.rejects(new Queuey("http://127.0.0.1:9", "shop", { fetch: busy, deadline: 100 }).me(), QueueyError);
    assert.equal(pauses.length, 3 + 3);
    assert.ok(pauses.every((each) => each === 30_000), pauses.join());
    await assert.rejects(new Queuey("http://127.0.0.1:9", "shop", { fetch: busy }).me(), QueueyError);
    assert.equal(pauses.length, 3 + 3, "no pause that would end after the deadline");
  });
}

test("an event with a long retry time", async () => {
  await streamed([() => new Response("retry: 99999999999\n")]);
  assert.ok(pauses[0] >= 30_000 && pauses[0] <= 45_000, pauses.join());
});

test("whatever a proxy answers, a stream goes on", async () => {
  const bodies = ["null", "5", "[]", '"x"', "", "<html>", '{"errors": null}', '{"errors": "x"}', '{"detail": null, "code": 5}'];
  const answers = bodies.map((body) => () => new Response(body, { status: 502 }));
  assert.equal((await streamed([...answers, () => new Response(event("bye", null))])).service, bodies.length + 2);
});
