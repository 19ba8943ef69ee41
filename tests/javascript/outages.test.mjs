// Every request and every loop, against a service that refuses connections, breaks answers off, is silent or busy, for good
// or until it is back after a while. In simulated time; see test_node.py.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { elapse, reset, seconds, sleep } from "./clock.mjs";

const { Queuey, QueueyError } = await import(process.env.CLIENT);
const ID = "51783387e91e11f18080808080808080";
const MESSAGE = { message_id: ID, partition: 1, timestamp: "1.0", body: "came" };
const encoder = new TextEncoder();

beforeEach(reset);

/** An answer whose body begins and then breaks off, or stays open. */
const partial = (text, ends) =>
  new ReadableStream({
    start(controller) {
      controller.enqueue(encoder.encode(text));
      if (ends) setTimeout(() => controller.error(new TypeError("broken off")), 1);
    },
  });

const aborted = (signal) =>
  new Promise((_, reject) => {
    if (signal?.aborted) reject(signal.reason);
    signal?.addEventListener("abort", () => reject(signal.reason));
  });

/** What a service does instead of answering. */
const FAULTS = {
  refuses: () => Promise.reject(new TypeError("refused")),
  "accepts and breaks": () => Promise.resolve(new Response(partial('{"sta', true))),
  "is silent": aborted,
  "is busy": () => Promise.resolve(Response.json({ code: "StoreBusy", outcome: "none" }, { status: 503 })),
};

class Service {
  requests = [];

  constructor(fault, until) {
    [this.fault, this.until] = [FAULTS[fault], until];
  }

  fetch = async (url, { method, headers, body, signal }) => {
    this.requests.push(seconds());
    if (seconds() < this.until) return this.fault(signal);
    // Heartbeats are held as long as they ask for.
    if (url.pathname.includes("/members/") && method === "POST") await Promise.race([sleep(JSON.parse(body).wait), aborted(signal)]);
    if (headers.Accept === "text/event-stream") {
      return new Response(partial(`retry: 4000\nid: ${ID}\n\ndata: ${JSON.stringify(MESSAGE)}\n\n`, false));
    }
    return Response.json(this.answer(method, url.pathname));
  };

  answer(method, path) {
    if (path.endsWith("/members")) return { member: "m", number: 1, session: 10, wait: 3 };
    if (path.includes("/members/")) return { session: 10, wait: 3, take: { q: { 1: { epoch: 1, offset: null, from: "new", note: null } } }, give_back: {}, lost: {} };
    if (path.endsWith("/_read")) return { queues: [{ messages: [MESSAGE] }] };
    const jobs = [{ ...MESSAGE, status: "done", result: "came" }];
    return { messages: [{ ...MESSAGE, key: ID }], queues: [], jobs, results: [], read: {}, pending: 0, job: "done", rights: [], queue_name: "q", cursor: "" };
  }

  client(options = {}) {
    return new Queuey("http://127.0.0.1:9", "shop", { key: "k", fetch: this.fetch, ...options });
  }
}

const CALLS = {
  me: (queuey) => queuey.me(),
  createQueue: (queuey) => queuey.createQueue("q"),
  send: (queuey) => queuey.send("q", "body"),
  read: (queuey) => queuey.read("q"),
  delete: (queuey) => queuey.delete("q", ID),
  markRead: (queuey) => queuey.markRead("q", ID),
  unread: (queuey) => queuey.unread(),
  claim: (queuey) => queuey.claim("q"),
  acknowledge: (queuey) => queuey.acknowledge("q", "receipt"),
  acknowledgeWith: (queuey) => queuey.acknowledgeWith("q", "receipt", 1),
  release: (queuey) => queuey.release("q", "receipt"),
  renew: (queuey) => queuey.renew("q", 30, "receipt"),
  jobs: (queuey) => queuey.jobs("q", ID),
  cancelJob: (queuey) => queuey.cancelJob("q", ID),
  retryJob: (queuey) => queuey.retryJob("q", ID),
  result: (queuey) => queuey.result("q", `1:${ID}`),
};

const first = async (messages) => (await messages.next()).value.body;
const LOOPS = {
  stream: (queuey) => first(queuey.stream("q")),
  "stream of several": (queuey) => first(queuey.stream(["q", "r"])),
  consume: (queuey) => first(queuey.consume("g", "q")),
  "result with a timeout": (queuey) => queuey.result("q", `1:${ID}`, { timeout: 60 }),
};

for (const fault of Object.keys(FAULTS)) {
  for (const [name, call] of Object.entries(CALLS)) {
    // A silent service answers no request that it got before it is back.
    const isSilent = fault === "is silent";
    test(`${name}: a service that ${fault} is back after 20 s`, async () => {
      const service = new Service(fault, 20);
      if (isSilent) return assert.rejects(elapse(call(service.client())), QueueyError);
      await elapse(call(service.client()));
      assert.ok(seconds() >= 20 && seconds() <= 30, `${seconds()}`);
      assert.ok(service.requests.length <= 40, service.requests.join());
    });

    test(`${name}: a service that ${fault} is given up after 30 s`, async () => {
      const service = new Service(fault, Infinity);
      const error = await elapse(call(service.client())).catch((caught) => caught);
      assert.ok(error instanceof QueueyError, String(error));
      const wait = name === "result" ? 20 : 0;
      assert.ok(seconds() >= 28.9 + wait && seconds() <= 30.1 + wait, `${seconds()}`);
      assert.equal(error.outcome, fault === "is busy" ? "none" : "unknown");
    });
  }

  for (const [name, loop] of Object.entries(LOOPS)) {
    if (fault === "is silent" && name !== "stream" && name !== "stream of several" && name !== "consume") continue;
    test(`${name}: a service that ${fault} is back after 50 s`, async () => {
      const service = new Service(fault, 50);
      assert.equal(await elapse(loop(service.client())), "came");
      assert.ok(seconds() >= 50 && seconds() <= 70, `${seconds()}`);
      assert.ok(service.requests.length <= 60, service.requests.join());
    });
  }
}

test("the deadline is an option, and 0 sends each request once", async () => {
  for (const [deadline, until, works] of [[600, 300, true], [5, 20, false]]) {
    reset();
    const outcome = await elapse(new Service("refuses", until).client({ deadline }).me()).then(() => true, () => false);
    assert.equal(outcome, works);
  }
  reset();
  const service = new Service("refuses", 1);
  await assert.rejects(elapse(service.client({ deadline: 0 }).me()), QueueyError);
  assert.equal(service.requests.length, 1);
  for (const deadline of [-1, NaN, "x"]) assert.throws(() => new Queuey("http://h", "a", { deadline }), TypeError);
});

test("a result with a timeout ends with it, and one without a timeout at the deadline", async () => {
  const { code } = await elapse(new Service("refuses", Infinity).client().result("q", ID, { timeout: 45 })).catch((error) => error);
  assert.deepEqual([code, seconds()], ["ResultTimeout", 45]);
});

test("an answer that is not JSON is not asked for again", async () => {
  const asked = [];
  const queuey = new Queuey("http://127.0.0.1:9", "shop", { fetch: async () => (asked.push(1), new Response("<html>")) });
  await assert.rejects(elapse(queuey.me()), { code: "InvalidAnswer", outcome: "unknown" });
  assert.equal(asked.length, 1);
});

test("a signal ends a request and the pauses between its attempts", async () => {
  for (const [name, call] of Object.entries({
    delete: (queuey, signal) => queuey.delete("q", ID, { signal }),
    acknowledge: (queuey, signal) => queuey.acknowledge("q", "receipt", { signal }),
    acknowledgeWith: (queuey, signal) => queuey.acknowledgeWith("q", "receipt", 1, { signal }),
    release: (queuey, signal) => queuey.release("q", "receipt", { signal }),
    renew: (queuey, signal) => queuey.renew("q", 30, "receipt", { signal }),
    cancelJob: (queuey, signal) => queuey.cancelJob("q", ID, { signal }),
    retryJob: (queuey, signal) => queuey.retryJob("q", ID, { signal }),
  })) {
    for (const fault of ["refuses", "is silent"]) {
      reset();
      const controller = new AbortController();
      setTimeout(() => controller.abort(), 7000);
      await assert.rejects(elapse(call(new Service(fault, Infinity).client(), controller.signal)), QueueyError);
      assert.equal(seconds(), 7, `${name} ${fault}`);
    }
  }
});

test("many ids are deleted in several requests of an address that fits", async () => {
  const paths = [];
  const fetch = async (url) => (paths.push(new URL(url).pathname), Response.json({}));
  const ids = Array.from({ length: 450 }, (_, number) => `4294967:${number.toString(16).padStart(32, "0")}`);
  await new Queuey("http://127.0.0.1:9", "shop", { fetch }).delete("q", ids);
  assert.deepEqual(paths.map((path) => decodeURIComponent(path).split(",").length), [200, 200, 50]);
  assert.ok(paths.every((path) => path.length < 14_000));
});

test("Retry-After may be a date, by the clock of the service or, if that is not shown, of this machine", async () => {
  const at = (time) => new Date(time).toUTCString();
  for (const headers of [{ "Retry-After": at(6000), Date: at(1000) }, { "Retry-After": at(Date.now() + 5500) }, { "Retry-After": "5" }]) {
    reset();
    let isBusy = true;
    const fetch = async () => (isBusy ? ((isBusy = false), new Response("", { status: 503, headers })) : Response.json({ rights: [] }));
    await elapse(new Queuey("http://127.0.0.1:9", "shop", { fetch }).me());
    assert.ok(seconds() >= 4 && seconds() <= 6, `${seconds()}`);
  }
});

test("a session of a year does not make timers fire at once", async () => {
  const service = new Service("refuses", 0);
  const answer = service.answer.bind(service);
  service.answer = (method, path) => ({ ...answer(method, path), ...(path.includes("/members") && { session: 365 * 86_400 }) });
  const messages = service.client().consume("g", "q");
  assert.equal(await elapse(first(messages)), "came");
  await elapse(sleep(60));
  await elapse(messages.return());
  assert.ok(service.requests.length < 60, `${service.requests.length}`);
});

/** Opens this many streams, whose connections a service cuts with an error, or ends, at one moment, and then each time. */
async function requestsAfterCut(count, events, fault) {
  const requests = [];
  const fetch = async () => {
    requests.push(seconds());
    const isFirst = requests.length <= count;
    const cut = new ReadableStream({
      start(controller) {
        controller.enqueue(encoder.encode(events));
        setTimeout(() => (fault ? controller.error(new TypeError("cut")) : controller.close()), isFirst ? 60_000 : 1);
      },
    });
    return new Response(cut);
  };
  const queuey = new Queuey("http://127.0.0.1:9", "shop", { fetch });
  for (let number = 0; number < count; number += 1) queuey.stream("q").next();
  await elapse(sleep(66));
  return requests.slice(count).map((at) => at - 60);
}

for (const fault of [true, false]) {
  for (const events of ["retry: 4000\n\n", "retry: 4000\nid: 1\n\n", "retry: 4000\nid: 1\n\n: beat\n\n"]) {
    test(`40 streams that are ${fault ? "cut" : "ended"} after ${JSON.stringify(events)} keep the time to reconnect, spread`, async () => {
      const times = await requestsAfterCut(40, events, fault);
      assert.equal(times.length, 40);
      const [soonest, latest] = [Math.min(...times), Math.max(...times)];
      assert.ok(soonest >= 4 && latest <= 6.1 && latest - soonest > 1, `${soonest} to ${latest}`);
    });
  }
}
