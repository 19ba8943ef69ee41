// A member of a group on a fake service, whose answers to heartbeats each test chooses. See test_node.py.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

const { Queuey } = await import(process.env.CLIENT);
const LIMIT = { timeout: 20_000 };

/** Seconds by which the clocks have been advanced. */
let steady = 0;
let wall = 0;
const [steadyNow, wallNow] = [performance.now.bind(performance), Date.now];
performance.now = () => steadyNow() + steady * 1000;
Date.now = () => wallNow() + wall * 1000;
beforeEach(() => {
  [steady, wall] = [0, 0];
});

const idOf = (number) => `${number.toString(16).padStart(8, "0")}000010008080808080808080`;
const taken = (epoch, offset = null) => ({ epoch, offset, from: "new", note: null });

const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
};

/** The service, with three messages in each partition of each queue; requests wait until a test answers them. */
class Script {
  joins = [];
  commits = [];
  left = [];
  reads = [];
  /** Answers of the next joins and commits. */
  refusals = [];
  holdsReads = false;
  /** Number of heartbeats received. */
  heartbeats = 0;
  joinTimes = [];
  #beats = [];
  #arrived = () => undefined;

  queuey = new Queuey("http://127.0.0.1:9", "shop", { fetch: (...asked) => this.#fetch(...asked) });

  #fetch({ pathname, search }, { method, body, signal }) {
    return new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason));
      const call = { body: body && JSON.parse(body), answer: (value, status = 200) => resolve(Response.json(value, { status })) };
      if (method === "DELETE") {
        this.left.push(pathname.split("/").at(-1) + search);
        call.answer({});
      } else if (pathname.endsWith("/members")) {
        this.joins.push(call.body);
        this.joinTimes.push(steadyNow());
        if (this.refusals.length) call.answer(...this.refusals.shift());
        else call.answer({ member: `m${this.joins.length}`, number: 1, session: 10, wait: 3 });
      } else if (method === "PUT") {
        this.commits.push(call.body);
        call.answer(...(this.refusals.shift() ?? [{}]));
      } else if (pathname.endsWith("/_read")) {
        this.reads.push(call);
        if (!this.holdsReads) this.read(call);
      } else {
        this.heartbeats += 1;
        this.#beats.push({ ...call, signal });
        this.#arrived();
      }
    });
  }

  /** Answers a read, if a message lies after its positions. */
  read({ body, answer }) {
    const queues = body.queues.map(({ after }) => ({
      messages: after.split(",").flatMap((place) => {
        const [partition, id] = place.split(":");
        const last = id.startsWith("0000000000001000") ? 0 : parseInt(id.slice(0, 8), 16);
        return [1, 2, 3].filter((number) => number > last).map((number) => ({ message_id: idOf(number), partition: Number(partition), body: number }));
      }),
    }));
    if (queues.some(({ messages }) => messages.length)) answer({ queues });
  }

  /** The next heartbeat without an answer. */
  async beat() {
    for (;;) {
      const beat = this.#beats.shift();
      if (beat && !beat.signal.aborted) return { ...beat, answer: (more, ...rest) => beat.answer({ session: 10, wait: 3, take: {}, give_back: {}, lost: {}, ...more }, ...rest) };
      if (!beat) await new Promise((resolve) => (this.#arrived = resolve));
    }
  }
}

test("a member names its queues, and gets their messages in order", LIMIT, async () => {
  const script = new Script();
  const controller = new AbortController();
  const options = { patterns: "q-*", session: 20, revoke: 5, grace: 60, instance: "a", signal: controller.signal };
  const messages = script.queuey.consume("g", "q", options);
  const next = messages.next();
  const beat = await script.beat();
  assert.deepEqual(script.joins, [{ queues: ["q"], patterns: ["q-*"], session: 20, revoke: 5, instance: "a", grace: 60 }]);
  assert.deepEqual(beat.body, { owned: {}, given_back: {}, wait: 0 });
  beat.answer({ take: { q: { 1: taken(7, idOf(1)) }, "q-2": { 5: taken(7) } } });
  const found = [(await next).value];
  while (found.length < 5) found.push((await messages.next()).value);
  const places = found.map(({ queue_name, partition, body }) => [queue_name, partition, body]);
  assert.deepEqual(places, [["q", 1, 2], ["q-2", 5, 1], ["q", 1, 3], ["q-2", 5, 2], ["q-2", 5, 3]]);
  const waiting = messages.next();
  await until(() => script.reads.length === 2);
  const after = Object.fromEntries(script.reads[1].body.queues.map(({ queue_name, after: position }) => [queue_name, position]));
  assert.deepEqual(after, { q: `1:${idOf(3)}`, "q-2": `5:${idOf(3)}` });
  controller.abort();
  assert.equal((await waiting).done, true);
});

test("after the current message a partition that others wait for is given back", LIMIT, async () => {
  const script = new Script();
  const messages = script.queuey.consume("g", "q");
  let next = messages.next();
  (await script.beat()).answer({ take: { q: { 1: taken(7), 2: taken(8) } } });
  const { value: message } = await next;
  assert.deepEqual([message.queue_name, message.partition, message.body], ["q", 1, 1]);
  let beat = await script.beat();
  assert.deepEqual(beat.body, { owned: { q: { 1: 7, 2: 8 } }, given_back: {}, wait: 3 });
  beat.answer({ give_back: { q: { 1: { epoch: 7, within: 30 } } } });
  beat = await script.beat();
  assert.deepEqual(beat.body.owned, { q: { 1: 7, 2: 8 } }, "it is being handled");
  assert.equal(await message.commit(), true);
  assert.deepEqual(script.commits, [{ member: "m1", commits: { 1: { epoch: 7, offset: idOf(1) } } }]);
  next = await Promise.all([messages.next(), messages.next()]);
  assert.deepEqual(next.map(({ value }) => value.partition), [2, 2], "no other message of it comes");
  assert.equal(beat.signal.aborted, true, "the others need not wait");
  beat = await script.beat();
  assert.deepEqual([beat.body.owned, beat.body.given_back], [{ q: { 2: 8 } }, { q: { 1: 7 } }]);
  beat.answer({});
  beat = await script.beat();
  assert.deepEqual(beat.body, { owned: { q: { 2: 8 } }, given_back: {}, wait: 3 });
  beat.answer({ take: { q: { 1: taken(7) } } });
  beat = await script.beat();
  assert.deepEqual([beat.body.owned, beat.body.given_back], [{ q: { 2: 8 } }, { q: { 1: 7 } }], "it is not taken again");
  beat.answer({ take: { q: { 1: taken(9) } } });
  assert.deepEqual((await script.beat()).body.owned, { q: { 1: 9, 2: 8 } });
  await messages.return();
  assert.deepEqual(script.left, ["m1"]);
});

test("a partition is given back in time, also while a message is handled", LIMIT, async () => {
  const script = new Script();
  const messages = script.queuey.consume("g", "q");
  const next = messages.next();
  (await script.beat()).answer({ take: { q: { 1: taken(7) } } });
  const { value: message } = await next;
  (await script.beat()).answer({ give_back: { q: { 1: { epoch: 7, within: 2 } } } });
  const beat = await script.beat();
  assert.ok(beat.body.wait > 0 && beat.body.wait <= 1.6, `${beat.body.wait}`);
  steady += 2;
  beat.answer({ give_back: { q: { 1: { epoch: 7, within: 0 } } } });
  const after = await script.beat();
  assert.deepEqual([after.body.owned, after.body.given_back], [{}, { q: { 1: 7 } }]);
  assert.equal(message.signal.aborted, true);
  assert.deepEqual([await message.commit(), script.commits], [false, []]);
  after.answer({ take: { q: { 1: taken(9, idOf(2)) } } });
  const { value: again } = await messages.next();
  assert.deepEqual([again.body, await again.commit(), script.commits[0].commits[1].epoch], [3, true, 9]);
  await messages.return();
});

for (const [clock, move] of [["the steady clock", (by) => (steady += by)], ["the other one: the machine has slept", (by) => (wall += by)]]) {
  test(`when the session is over by ${clock}, no more messages are handed out or committed`, LIMIT, async () => {
    const script = new Script();
    const messages = script.queuey.consume("g", "q");
    const next = messages.next();
    (await script.beat()).answer({ take: { q: { 1: taken(7) } } });
    const { value: message } = await next;
    const late = await script.beat();
    move(10.1);
    assert.deepEqual([await message.commit(), script.commits], [false, []]);
    late.answer({ take: { q: { 2: taken(8) } } });
    await until(() => message.signal.aborted);
    const again = messages.next();
    const beat = await script.beat();
    assert.deepEqual([script.joins.length, beat.body.owned, script.left], [2, {}, []]);
    beat.answer({ take: { q: { 1: taken(11) } } });
    const { value } = await again;
    await value.commit();
    assert.deepEqual(script.commits, [{ member: "m2", commits: { 1: { epoch: 11, offset: idOf(1) } } }]);
    await messages.return();
  });
}

test("a session is timed from the sending of its heartbeat", LIMIT, async () => {
  const script = new Script();
  const messages = script.queuey.consume("g", "q");
  const next = messages.next();
  const beat = await script.beat();
  steady += 9;
  beat.answer({ take: { q: { 1: taken(7) } } });
  const { value: message } = await next;
  steady += 1.1;
  assert.equal(await message.commit(), false);
  await messages.return();
});

test("messages read from a partition that was lost meanwhile are dropped", LIMIT, async () => {
  const script = new Script();
  script.holdsReads = true;
  const messages = script.queuey.consume("g", "q");
  const next = messages.next();
  (await script.beat()).answer({ take: { q: { 1: taken(7), 2: taken(7) } } });
  let beat = await script.beat();
  await until(() => script.reads.length === 1);
  beat.answer({ lost: { q: [1] } });
  await until(() => script.reads.length === 2);
  script.read(script.reads[0]);
  beat = await script.beat();
  assert.deepEqual(beat.body.owned, { q: { 2: 7 } });
  script.holdsReads = false;
  beat.answer({ take: { q: { 3: taken(8) } } });
  await until(() => script.reads.length === 3);
  assert.deepEqual(script.reads.map(({ body }) => body.queues[0].partitions), [[1, 2], [2], [2, 3]]);
  assert.equal((await next).value.partition, 2);
  await messages.return();
});

test("a refused commit is false, and drops the partition; an unanswered one is repeated", LIMIT, async () => {
  const script = new Script();
  const messages = script.queuey.consume("g", "q");
  const next = messages.next();
  (await script.beat()).answer({ take: { q: { 1: taken(7), 2: taken(8) } } });
  const { value: one } = await next;
  script.refusals = [[{ code: "Unavailable" }, 503], [{ code: "NotOwner", not_owned: [1] }, 409]];
  assert.deepEqual([await one.commit(), script.commits.length, one.signal.aborted], [false, 2, true]);
  const { value: two } = await messages.next();
  assert.equal(two.partition, 2);
  script.refusals = [[{ code: "MemberGone" }, 404]];
  assert.equal(await two.commit(), false);
  const again = messages.next();
  (await script.beat()).answer({ take: { q: { 2: taken(9) } } });
  assert.deepEqual([(await again).value.body, script.joins.length, script.left], [1, 2, []]);
  await messages.return();
});

test("an expired member joins again; a refused join ends the loop", LIMIT, async () => {
  const script = new Script();
  const states = [];
  const messages = script.queuey.consume("g", ["q"], { instance: "a", onState: (state, error) => states.push([state, error?.status]) });
  const next = messages.next();
  (await script.beat()).answer({ code: "MemberGone" }, 404);
  script.refusals = [[{ code: "Unavailable" }, 503], [{ code: "NotAllowed" }, 403]];
  await assert.rejects(next, { code: "NotAllowed" });
  assert.deepEqual([script.joins[0], script.joins.length], [{ queues: ["q"], instance: "a" }, 3]);
  assert.deepEqual(states, [["open", undefined], ["waiting", undefined], ["waiting", 503]]);
  assert.equal(script.heartbeats, 1);
  assert.ok(script.joinTimes[1] - script.joinTimes[0] >= 100, "two members of one instance would replace each other");
});

test("heartbeats go on while the service is down, and repeated answers have no effect", LIMIT, async () => {
  const script = new Script();
  const messages = script.queuey.consume("g", "q", { instance: "a" });
  const next = messages.next();
  (await script.beat()).answer({}, 503);
  (await script.beat()).answer({ take: { q: { 1: taken(7) } }, give_back: { q: { 2: { epoch: 5, within: 9 } } } });
  const { value: message } = await next;
  const beat = await script.beat();
  assert.deepEqual([beat.body.owned, beat.body.given_back], [{ q: { 1: 7 } }, { q: { 2: 5 } }], "it never heard of the second");
  beat.answer({ take: { q: { 1: taken(7) } }, lost: { q: [3] } });
  assert.deepEqual((await script.beat()).body, { owned: { q: { 1: 7 } }, given_back: {}, wait: 3 });
  assert.equal((await messages.next()).value.body, 2);
  assert.equal(message.signal.aborted, false);
  await messages.return();
  assert.deepEqual([script.joins.length, script.left], [1, ["m1?return=1"]]);
});

test("a signal ends the loop after the current message", LIMIT, async () => {
  const script = new Script();
  const controller = new AbortController();
  const messages = script.queuey.consume("g", "q", { signal: controller.signal });
  const next = messages.next();
  (await script.beat()).answer({ take: { q: { 1: taken(7) } } });
  const { value: message } = await next;
  controller.abort();
  assert.equal(await message.commit(), true);
  assert.deepEqual([await messages.next(), script.left], [{ done: true, value: undefined }, ["m1"]]);
  const idle = new AbortController();
  const other = new Script();
  const none = other.queuey.consume("g", "q", { signal: idle.signal }).next();
  await other.beat();
  idle.abort();
  assert.deepEqual([(await none).done, other.heartbeats, other.left], [true, 1, ["m1"]]);
});
