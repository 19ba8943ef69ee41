/**
 * A client of Queuey for browsers and Node: one ES module, no dependency, no build step. Types: queuey.d.ts.
 *
 *     import { Queuey } from "https://queuey.example.com/client/queuey.js";
 *
 *     const queuey = new Queuey("https://queuey.example.com", "shop", { token: () => fetchToken() });
 *     for await (const message of queuey.stream("inbox-ann")) show(message.body);
 */

/** Pauses after failures grow from the base, doubled by each failure, up to the cap. */
const BACKOFF_BASE_MILLISECONDS = 200;
const BACKOFF_CAP_MILLISECONDS = 5000;
/** Max times that a request is sent. */
const MAX_ATTEMPTS = 5;
/** Max milliseconds for which a service may ask to wait. */
const MAX_ASKED_PAUSE_MILLISECONDS = 30_000;
/** Milliseconds after which a stream counts as one that lasts, so that its token may be renewed at once. */
const MIN_LASTING_MILLISECONDS = 10_000;
/** Milliseconds without a byte after which a stream counts as broken; the service writes every 25 s. */
const SILENCE_TIMEOUT_MILLISECONDS = 60_000;
/** Messages that were given early are remembered; older ones may come again. */
const MAX_EARLY_MESSAGES = 10_000;
/** Seconds that `markRead` waits at most until the service shows, in its place, what is marked. */
const MAX_PENDING_SECONDS = 10;
const TEMPORARY_STATUSES = new Set([429, 502, 503, 504]);
/** Seconds, beyond those that the service may wait, after which a member's request is sent again. */
const ANSWER_MARGIN_SECONDS = 2;
/** Part of the time for giving a partition back after which that is done, whether or not its message is handled. */
const GIVE_BACK_SHARE = 0.8;
/** Seconds that a member's read waits for messages; the second if it owns partitions of more queues than one read may name. */
const READ_WAIT_SECONDS = 20;
const READ_TURN_SECONDS = 1;
const MAX_QUEUES_PER_READ = 100;
/** A position before all messages. */
const EARLIEST = "00000000000010008080808080808080";

/** What the service refused, or why it could not be asked. */
export class QueueyError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, errors?: Record<string, string>, outcome?: string, retryAfter?: number}} [more]
   * @param {unknown} [cause]
   */
  constructor(message, more = {}, cause = undefined) {
    super(message, { cause });
    this.name = "QueueyError";
    /** The answer's status; 0: there was no answer. */
    this.status = more.status ?? 0;
    /** A word for the kind of error. */
    this.code = more.code ?? "NoAnswer";
    /** What is wrong, by field. */
    this.errors = more.errors ?? {};
    /** Whether anything was changed: "none", or "unknown". */
    this.outcome = more.outcome ?? (this.status && this.status < 500 ? "none" : "unknown");
    /** Seconds that the service asks to wait. */
    this.retryAfter = more.retryAfter ?? 0;
  }
}

/** Speaks with the queues of one application. */
export class Queuey {
  #base;
  #options;
  #token = "";
  /** Waits for jobs, by queue. */
  #waits = new Map();

  /**
   * @param {string} url
   * @param {string} application
   * @param {import("./queuey.js").Options} [options]
   */
  constructor(url, application, options = {}) {
    if (options.key && options.token) throw new TypeError("give a key or a token, not both");
    const address = `${url.replace(/\/+$/, "")}/v1/${segment("application", application)}`;
    const { href, search, hash, username, password } = new URL(address, globalThis.location?.href);
    const isValid = !(search || hash || username || password || /[\0-\x20\x7f\\?#]/.test(url)) && /^https?:/.test(href);
    const rule = "it begins with http:// or https://, and has no query, fragment, user or spaces";
    this.#base = checked(isValid, "url", href, rule, username || password ? "not shown" : url);
    this.#options = options;
  }

  /** Who the caller is, and what it may do. */
  async me(options = {}) {
    return (await this.#ask("GET", "/_me", { ...options, again: true })).json();
  }

  /** Names of the queues that are the caller's own, for reading. */
  async myQueues(options = {}) {
    const { rights } = await this.me(options);
    return rights.filter((right) => right.allow.includes("read")).flatMap((right) => right.queues ?? []);
  }

  /** Creates a queue; one that is there with the same fields is a success. */
  async createQueue(name, fields = {}, options = {}) {
    const body = jsonText({ ...fields, queue_name: name });
    return (await this.#ask("POST", "", { ...options, body, type: "application/json", again: true })).json();
  }

  /** Stores a message: text, bytes, or any JSON value. Sent again after a failure, it is stored once. */
  async send(queue, body, options = {}) {
    const target = path(queue);
    const headers = { "Idempotency-Key": headerText("idempotencyKey", options.idempotencyKey ?? crypto.randomUUID()) };
    const given = { ttl: "X-TTL", partition: "X-Partition", key: "X-Message-Key", delay: "X-Delay", after: "X-After" };
    for (const [name, header] of Object.entries(given)) {
      if (options[name] !== undefined) headers[header] = headerText(name, options[name]);
    }
    for (const [name, value] of Object.entries(options.headers ?? {})) {
      checked(HEADER_NAME.test(name), "the name of a header", name, "it has other characters than names of headers");
      headers[`X-Header-${name}`] = value === "" ? "" : headerText(`headers.${name}`, value);
    }
    const content = await contentOf(body, options.contentType);
    if (content.isJson) headers["X-Encoding"] = "json";
    const answer = await this.#ask("POST", target, { ...options, headers, body: content.bytes, type: content.type, again: true });
    const stored = { ...(await answer.json()).messages[0] };
    const methods = {
      status: async (more) => (await this.jobs(queue, [stored], more))[0],
      state: async (more) => (await this.jobs(queue, [stored], { ...more, states: true }))[0].state,
      result: (more) => this.result(queue, stored, more),
    };
    for (const [name, value] of Object.entries(methods)) Object.defineProperty(stored, name, { value });
    return stored;
  }

  /** What became of jobs, up to 100; with `wait` it waits until one of them has ended. */
  async jobs(queue, jobs, options = {}) {
    const { wait, states } = options;
    const target = `${path(queue)}/jobs/${[jobs].flat().map(placeOf).join(",")}`;
    return (await (await this.#ask("GET", target, { ...options, query: { wait, states }, again: true })).json()).jobs;
  }

  /** Waits until a job has ended; returns its result, or throws a QueueyError with the job. Waits share a request. */
  async result(queue, job, options = {}) {
    const { timeout } = options;
    checked(timeout === undefined || typeof timeout === "number", "timeout", timeout, "it is a number of seconds");
    const key = path(queue);
    let waits = this.#waits.get(key);
    if (!waits) {
      const ask = (places, more) => this.jobs(queue, places, more);
      waits = new JobWaits(ask, () => this.#waits.delete(key));
      this.#waits.set(key, waits);
    }
    return resultOf(await waits.ended(placeOf(job), options));
  }

  /** Reads messages of a queue in time order, from `since` on; `cursor` of the answer is where the next read goes on. */
  async read(queue, options = {}) {
    const { since, limit, partitions, order, wait, early, merge = true } = options;
    const query = { since, limit, partitions: partitions ?? "*", order, wait, early, merge: merge ? 1 : undefined };
    const page = await (await this.#ask("GET", path(queue), { ...options, query, again: true })).json();
    return { messages: page.messages.map(decoded), cursor: page.cursor, more: page.more };
  }

  /** Deletes messages, given as such or by their ids. */
  async delete(queue, ...messages) {
    const ids = messages.flat().map(placeOf);
    if (ids.length) await this.#ask("DELETE", `${path(queue)}/${ids.join(",")}`, { again: true });
  }

  /**
   * Marks up to where the caller has read a queue: given messages, each for its partition. A mark never goes back unless
   * `back` is set. That of an early message is set once the message has come in its place.
   */
  async markRead(queue, seen, options = {}) {
    const ids = [seen].flat().map(placeOf);
    const body = jsonText({ until: last(ids).join(","), back: options.back });
    const asked = { ...options, body, type: "application/json", again: true };
    const mark = async () => (await this.#ask("PUT", `${path(queue)}/read`, asked)).json();
    const found = await mark();
    if (!found.pending || found.pending > MAX_PENDING_SECONDS) return found;
    return (await slept(found.pending * 1000, options.signal)) ? mark() : found;
  }

  /** Counts what the caller has not read: of the queues that are named, or (undefined) of all that it may read. */
  async unread(queues = undefined, options = {}) {
    const body = jsonText({ queues: queues && [queues].flat(), limit: options.limit });
    return (await (await this.#ask("POST", "/_unread", { ...options, body, type: "application/json", again: true })).json()).queues;
  }

  /** Claims messages: nobody else gets them until `ttl` is over. Each has a `receipt`. */
  async claim(queue, options = {}) {
    const { limit, ttl, wait, partitions } = options;
    const query = { limit, ttl, wait, partitions, states: true };
    const answer = await this.#ask("POST", `${path(queue)}/claims`, { ...options, query });
    return (await answer.json()).messages.map(decoded);
  }

  /** Says that claimed messages are done. */
  async acknowledge(queue, ...messages) {
    await this.#settle(queue, "ack", messages);
  }

  /** Says that a claimed message is done, with the result of its job: any JSON value. */
  async acknowledgeWith(queue, message, result) {
    const receipt = typeof message === "string" ? message : message.receipt;
    const body = jsonText({ receipts: [receipt], results: { [receipt]: result } });
    await this.#ask("POST", `${path(queue)}/claims/ack`, { body, type: "application/json", again: true });
  }

  /** Gives claimed messages back, to be claimed again. */
  async release(queue, ...messages) {
    await this.#settle(queue, "release", messages);
  }

  /** Keeps claims for `ttl` seconds from now on; returns their results. One that has `cancelled` is to be stopped. */
  async renew(queue, ttl, ...messages) {
    return (await (await this.#settle(queue, "renew", messages, { ttl })).json()).results;
  }

  /** Cancels a job: `removed`; `claimed`, so that its worker is asked to stop; or `done` before. */
  async cancelJob(queue, message) {
    return this.#act(queue, message, "cancel");
  }

  /** Makes a job that was released with a delay, or is delayed, deliverable now: `waiting`, `claimed` or `done`. */
  async retryJob(queue, message) {
    return this.#act(queue, message, "retry");
  }

  async #act(queue, message, what) {
    const answer = await this.#ask("POST", `${path(queue)}/jobs/${placeOf(message)}/${what}`, { again: true });
    return (await answer.json()).job;
  }

  async #settle(queue, what, messages, more = {}) {
    const receipts = messages.flat().map((each) => (typeof each === "string" ? each : each.receipt));
    const body = jsonText({ receipts, ...more });
    return this.#ask("POST", `${path(queue)}/claims/${what}`, { body, type: "application/json", again: true });
  }

  /**
   * Messages as they come, of one queue, of several, or (undefined) of all that the caller may read. It goes on after
   * failures, restarts of the service and the ends of tokens: nothing is left out, and nothing comes twice. With `early`
   * they come as soon as they are stored; those that may vanish yet are marked so.
   *
   * @param {string | string[] | undefined} queues
   * @param {import("./queuey.js").StreamOptions} [options]
   */
  async *stream(queues = undefined, options = {}) {
    const one = typeof queues === "string";
    const target = one ? path(queues) : "/_stream";
    const body = one ? undefined : jsonText({ ...fields(options), ...(queues && { queues }) });
    const query = one ? fields(options) : undefined;
    const place = { last: options.lastEventId ?? "", retry: 1000 };
    const given = new GivenEarly();
    let failures = 0;
    let fresh = false;
    /** Tokens in a row that were asked for without a stream that lasted. */
    let renewals = 0;
    for (;;) {
      let error;
      const began = performance.now();
      const lasts = () => performance.now() - began > MIN_LASTING_MILLISECONDS;
      const isRenewed = fresh;
      fresh = false;
      try {
        const headers = { Accept: "text/event-stream", ...(place.last && { "Last-Event-ID": headerText("lastEventId", place.last) }) };
        const asked = { headers, query, body, type: "application/json", signal: options.signal, fresh: isRenewed };
        const answer = await this.#once(one ? "GET" : "POST", target, asked);
        failures = 0;
        options.onState?.("open");
        if (!answer.body) throw new QueueyError("the answer has no events");
        for await (const event of events(answer.body, place, options.signal)) {
          if (event.type === "message") {
            const message = JSON.parse(event.data);
            const isNew = given.isNew(message);
            given.passOver(event.id);
            if (isNew) yield decoded(message);
          } else if (event.type === "gone") options.onGone?.(JSON.parse(event.data));
          else if (event.type === "read") options.onRead?.({ ...(one && { queue_name: queues }), ...JSON.parse(event.data) });
          else if (event.type === "expiring") {
            // A new token that ends as soon is used up to its end.
            fresh = typeof this.#options.token === "function" && (!isRenewed || lasts());
            if (fresh) break;
          } else if (event.type === "bye") {
            const told = JSON.parse(event.data) ?? {};
            if (told.status && !TEMPORARY_STATUSES.has(told.status) && told.status !== 401) throw refused(told.status, told);
            fresh = told.status === 401;
            break;
          }
        }
      } catch (caught) {
        if (options.signal?.aborted) return;
        error = caught;
        if (!isTemporary(error)) throw error;
        failures += 1;
      }
      if (options.signal?.aborted) return;
      options.onState?.("waiting", error);
      if (fresh) renewals = lasts() ? 1 : renewals + 1;
      // Those that lost the same service come back apart.
      const pause = fresh ? backoff(renewals - 1, 0) : Math.max(askedPause(error), backoff(failures, place.retry));
      if (!(await slept(fresh && renewals === 1 ? 0 : pause, options.signal))) return;
    }
  }

  /**
   * Messages of the partitions that this member of a consumer group owns; those of one partition come in order. Each is to
   * be committed: `await message.commit()`. It goes on, with further partitions, after failures and restarts of the service.
   *
   * @param {string} group
   * @param {string | string[] | undefined} queues
   * @param {import("./queuey.js").ConsumeOptions} [options]
   */
  async *consume(group, queues = undefined, options = {}) {
    const { patterns, session, revoke, instance, grace, signal, onState } = options;
    const target = `/_groups/${segment("group", group)}`;
    const lists = { queues: queues && [queues].flat(), patterns: patterns && [patterns].flat() };
    const body = jsonText({ ...lists, session, revoke, instance, grace });
    const ask = (...asked) => this.#once(...asked);
    /** In a row: joins that failed, and memberships that soon ended, as those of two members of one instance do. */
    let failures = 0;
    while (!signal?.aborted) {
      const sent = instant();
      let joined, error;
      try {
        joined = await (await ask("POST", `${target}/members`, { body, type: "application/json", signal })).json();
      } catch (caught) {
        if (signal?.aborted) return;
        if (!isTemporary(caught)) throw caught;
        error = caught;
      }
      if (joined) {
        onState?.("open");
        yield* new Membership(ask, group, joined, sent, options).messages();
        if (elapsed(sent) * 1000 > MIN_LASTING_MILLISECONDS) failures = 0;
      }
      if (signal?.aborted) return;
      onState?.("waiting", error);
      await slept(Math.max(askedPause(error), backoff((failures += 1), BACKOFF_BASE_MILLISECONDS)), signal);
    }
  }

  /** Asks, again and again after failures that pass, if that does no harm. */
  async #ask(method, target, asked) {
    for (let round = 1; ; round += 1) {
      try {
        return await this.#once(method, target, asked);
      } catch (error) {
        const harmless = asked.again || error.outcome === "none";
        if (!isTemporary(error) || !harmless || round >= MAX_ATTEMPTS || asked.signal?.aborted) throw error;
        if (!(await slept(Math.max(askedPause(error), backoff(round, BACKOFF_BASE_MILLISECONDS)), asked.signal))) throw error;
      }
    }
  }

  /** Asks once; with a token that is refused, once more with a new one. */
  async #once(method, target, asked) {
    let answer = await this.#send(method, target, asked, asked.fresh);
    if (answer.status === 401 && this.#options.token && !asked.fresh) {
      await answer.body?.cancel();
      answer = await this.#send(method, target, asked, true);
    }
    if (answer.ok) return answer;
    const text = await answer.text().catch(() => "");
    let told = {};
    try {
      told = JSON.parse(text);
    } catch {
      told = { detail: text };
    }
    throw refused(answer.status, told, Number(answer.headers.get("Retry-After")) || 0);
  }

  async #send(method, target, asked, fresh = false) {
    const url = new URL(this.#base + target);
    for (const [name, value] of Object.entries(asked.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(whole(name, value)));
    }
    const headers = { Accept: "application/problem+json", ...asked.headers };
    const credential = await this.#credential(fresh);
    if (credential) headers.Authorization = credential;
    if (asked.body !== undefined && asked.type) headers["Content-Type"] = asked.type;
    const ask = this.#options.fetch ?? globalThis.fetch;
    try {
      return await ask(url, { method, headers, body: asked.body, signal: asked.signal, cache: "no-store" });
    } catch (error) {
      throw new QueueyError(`no answer from ${url.origin}`, {}, error);
    }
  }

  async #credential(fresh) {
    const { key, token } = this.#options;
    if (key) return `Application ${headerText("key", key, "not shown")}`;
    if (!token) return "";
    if (typeof token === "string") return `Bearer ${headerText("token", token, "not shown")}`;
    if (fresh || !this.#token) {
      try {
        this.#token = await token({ refresh: fresh });
      } catch (error) {
        throw new QueueyError("the function that gives tokens has failed", { code: "NoToken", outcome: "none" }, error);
      }
    }
    return `Bearer ${headerText("token", this.#token, "not shown")}`;
  }
}

/** A partition that a member owns, from the answer that gave it until the ownership ends. */
class Ownership {
  /** Messages that were read and not given yet. */
  messages = [];
  /** Until when another member waits for it: the instant of the request, and seconds. */
  due = undefined;
  #end = new AbortController();

  constructor(queue, partition, { epoch, offset }) {
    this.queue = queue;
    this.partition = partition;
    this.epoch = epoch;
    /** The last message that was read. */
    this.position = offset ?? EARLIEST;
  }

  get ended() {
    return this.#end.signal;
  }

  end() {
    this.messages = [];
    this.due = undefined;
    this.#end.abort();
  }
}

/** One membership in a group, from the join until it leaves or its session is over: docs/architecture-groups.md. */
class Membership {
  #ask;
  #group;
  #options;
  #id;
  #wait;
  /** The session: seconds, from the instant at which the last heartbeat that was answered was sent. */
  #session;
  #sent;
  #isGone = false;
  /** By partition and queue. */
  #owned = new Map();
  /** Ended ownerships, until the service has answered that it knows. */
  #givenBack = new Map();
  /** The ownership of the message that is being handled. */
  #current;
  #beat = new AbortController();
  #reading;
  /** Reads in a row that failed. */
  #failures = 0;
  #turn = 0;
  /** Resolved when there may be something to do. */
  #news;
  #notify = () => undefined;

  constructor(ask, group, { member, session, wait }, sent, options) {
    [this.#ask, this.#group, this.#options] = [ask, segment("group", group), options];
    [this.#id, this.#session, this.#wait, this.#sent] = [member, session, wait, sent];
    this.#renew();
  }

  /** Gives messages until the session is over or the caller has enough; then leaves. */
  async *messages() {
    const { signal } = this.#options;
    const stopped = () => this.#renew();
    signal?.addEventListener("abort", stopped, { once: true });
    this.#sendHeartbeats();
    try {
      while (!signal?.aborted && !this.#isOver()) {
        const owned = this.#next();
        if (!owned) {
          if (!this.#reading) this.#read();
          await this.#news;
          continue;
        }
        this.#current = owned;
        yield this.#offered(owned, owned.messages.shift());
        this.#current = undefined;
        if (owned.due) this.#beat.abort();
      }
    } finally {
      signal?.removeEventListener("abort", stopped);
      await this.#leave();
    }
  }

  /** Returns an ownership that has a message; they take turns. */
  #next() {
    for (const [key, owned] of this.#owned) {
      if (owned.due || !owned.messages.length) continue;
      this.#owned.delete(key);
      this.#owned.set(key, owned);
      return owned;
    }
  }

  #offered(owned, message) {
    const commit = () => this.#commit(owned, message.message_id);
    const offered = { ...decoded(message), queue_name: owned.queue };
    return Object.defineProperties(offered, { signal: { value: owned.ended }, commit: { value: commit } });
  }

  /** Records that a message and those before it are handled; returns whether it did. */
  async #commit(owned, id) {
    const commits = { [owned.partition]: { epoch: owned.epoch, offset: id } };
    const asked = { body: jsonText({ member: this.#id, commits }), type: "application/json", signal: owned.ended };
    for (let failures = 0; !owned.ended.aborted && !this.#isOver(); ) {
      try {
        await this.#ask("PUT", `${path(owned.queue)}/offsets/${this.#group}`, asked);
        return true;
      } catch (error) {
        if (error.code === "MemberGone") this.#end();
        else if (error.code === "NotOwner" || error.code === "InvalidQueueName") this.#drop(owned);
        // An offset goes only forward, so it may be sent again.
        else await slept(this.#pause((failures += 1), error), owned.ended);
      }
    }
    return false;
  }

  #isOver() {
    return this.#isGone || !(elapsed(this.#sent) < this.#session);
  }

  /** Milliseconds to wait after a failure, at most until the session is over. */
  #pause(failures, error) {
    return Math.min(Math.max(askedPause(error), backoff(failures, BACKOFF_BASE_MILLISECONDS)), this.#left());
  }

  #left() {
    return Math.max(0, this.#session - elapsed(this.#sent)) * 1000;
  }

  /** One heartbeat after the other, until the session is over. */
  async #sendHeartbeats() {
    // The first one says that the join was answered, and brings the partitions.
    let wait = 0;
    for (let failures = 0; !this.#isOver(); ) {
      this.#giveBack();
      const named = [...this.#owned.values()];
      const given = [...this.#givenBack.values()];
      const { due } = this.#current ?? {};
      if (due) wait = Math.max(0, Math.min(wait, due.seconds - elapsed(due.since)));
      const body = jsonText({ owned: epochs(named), given_back: epochs(given), wait });
      const sent = instant();
      const beat = (this.#beat = new AbortController());
      const { signal } = beat;
      let isLate = false;
      const late = () => beat.abort((isLate = true));
      const timer = setTimeout(late, Math.min((wait + ANSWER_MARGIN_SECONDS) * 1000, this.#left()));
      try {
        const answer = await (await this.#ask("POST", this.#target, { body, type: "application/json", signal })).json();
        // An answer after the end of the session counts as none.
        if (this.#isOver()) break;
        [this.#sent, this.#session, this.#wait, failures] = [sent, answer.session, answer.wait, 0];
        for (const owned of given) if (this.#givenBack.get(keyOf(owned)) === owned) this.#givenBack.delete(keyOf(owned));
        this.#follow(answer, named, sent);
      } catch (error) {
        if (error.code === "MemberGone" || error.status === 401) break;
        // Otherwise there is something to give back.
        if (!signal.aborted || isLate) {
          this.#beat = new AbortController();
          await slept(this.#pause((failures += 1), error), this.#beat.signal);
        }
      } finally {
        clearTimeout(timer);
      }
      wait = this.#wait;
    }
    this.#end();
  }

  get #target() {
    return `/_groups/${this.#group}/members/${this.#id}`;
  }

  /** Ends the ownerships that others wait for; that of the message that is being handled, when its time is over. */
  #giveBack() {
    for (const [key, owned] of this.#owned) {
      const { due } = owned;
      if (!due || (owned === this.#current && elapsed(due.since) < due.seconds)) continue;
      this.#drop(owned);
      this.#givenBack.set(key, owned);
    }
  }

  /** Does what an answer says; `named` are the ownerships that its request had. */
  #follow({ take, give_back: back, lost }, named, sent) {
    for (const [queue, partitions] of Object.entries(take)) {
      for (const [partition, taken] of Object.entries(partitions)) {
        const owned = new Ownership(queue, Number(partition), taken);
        const former = this.#owned.get(keyOf(owned)) ?? this.#givenBack.get(keyOf(owned));
        if (former?.epoch >= owned.epoch) continue;
        if (former) this.#drop(former);
        this.#owned.set(keyOf(owned), owned);
        this.#reading?.abort();
      }
    }
    for (const [queue, partitions] of Object.entries(back)) {
      for (const [partition, { epoch, within }] of Object.entries(partitions)) {
        const asked = new Ownership(queue, Number(partition), { epoch });
        const owned = this.#owned.get(keyOf(asked));
        if (owned?.epoch === epoch) owned.due ??= { since: sent, seconds: within * GIVE_BACK_SHARE };
        // It was given to this member by an answer that never came.
        else if (!(owned?.epoch > epoch)) this.#givenBack.set(keyOf(asked), asked);
      }
    }
    for (const owned of named) if (lost[owned.queue]?.includes(owned.partition)) this.#drop(owned);
    this.#renew();
  }

  #drop(owned) {
    if (this.#owned.get(keyOf(owned)) === owned) this.#owned.delete(keyOf(owned));
    owned.end();
    this.#reading?.abort();
  }

  /** Reads the next messages of all partitions, and waits for some. */
  async #read() {
    const queues = new Map();
    for (const owned of this.#owned.values()) {
      if (!owned.due) queues.set(owned.queue, [...(queues.get(owned.queue) ?? []), owned]);
    }
    if (!queues.size) return;
    // Each queue has its turn to be the first: an answer may be too short for all.
    const start = (this.#turn += 1) % queues.size;
    const turn = [...queues.values(), ...queues.values()].slice(start, start + Math.min(queues.size, MAX_QUEUES_PER_READ));
    const wait = queues.size > turn.length ? READ_TURN_SECONDS : READ_WAIT_SECONDS;
    const body = jsonText({ queues: turn.map(rangeOf), wait });
    const reading = (this.#reading = new AbortController());
    const { signal } = reading;
    const timer = setTimeout(() => reading.abort(), (READ_WAIT_SECONDS + ANSWER_MARGIN_SECONDS) * 1000);
    try {
      const { queues: pages } = await (await this.#ask("POST", "/_read", { body, type: "application/json", signal })).json();
      pages.forEach(({ messages = [] }, index) => this.#take(turn[index], messages));
      const unread = pages.find((page) => page.error_msg);
      if (unread) throw refused(0, unread);
      this.#failures = 0;
    } catch (error) {
      if (!signal.aborted) await slept(this.#pause((this.#failures += 1), error), signal);
    } finally {
      clearTimeout(timer);
      this.#reading = undefined;
      this.#renew();
    }
  }

  /** Keeps the messages of partitions that are still owned as they were when they were asked for. */
  #take(ownerships, messages) {
    for (const message of messages) {
      const owned = ownerships.find(({ partition }) => partition === message.partition);
      if (owned.ended.aborted) continue;
      owned.messages.push(message);
      owned.position = message.message_id;
    }
  }

  #renew() {
    this.#notify();
    this.#news = new Promise((resolve) => (this.#notify = resolve));
  }

  #end() {
    this.#isGone = true;
    for (const owned of [...this.#owned.values()]) this.#drop(owned);
    this.#reading?.abort();
    this.#beat.abort();
    this.#renew();
  }

  async #leave() {
    const [isOver, left] = [this.#isOver(), this.#left()];
    this.#end();
    if (isOver) return;
    const query = { return: this.#options.instance ? 1 : undefined };
    await this.#ask("DELETE", this.#target, { query, signal: AbortSignal.timeout(Math.ceil(left)) }).catch(() => undefined);
  }
}

const keyOf = ({ queue, partition }) => `${partition}:${queue}`;

/** What a read asks of the ownerships of one queue. */
const rangeOf = (ownerships) => ({
  queue_name: ownerships[0].queue,
  partitions: ownerships.map(({ partition }) => partition),
  after: ownerships.map(({ partition, position }) => `${partition}:${position}`).join(),
});

/** The epochs of ownerships, as a heartbeat names them. */
function epochs(ownerships) {
  const named = {};
  for (const { queue, partition, epoch } of ownerships) (named[queue] ??= {})[partition] = epoch;
  return named;
}

/** An instant by two clocks: one may stand still while the machine sleeps, and the other may be set. */
const instant = () => ({ steady: performance.now(), wall: Date.now() });

/** Seconds since an instant, by the clock that has gone further. */
const elapsed = (since) => Math.max(performance.now() - since.steady, Date.now() - since.wall) / 1000;

/** Whether a request may succeed later: there was no answer, or the service is busy or away. */
const isTemporary = (error) => error instanceof QueueyError && (error.status === 0 || TEMPORARY_STATUSES.has(error.status));

const UNFINISHED_STATUSES = new Set(["waiting", "delayed", "claimed", "retrying"]);
const MAX_JOBS_PER_REQUEST = 100;
/** Seconds that a request waits for jobs, and, if there are more than it may name, until the next ones have their turn. */
const JOB_WAIT_SECONDS = 20;
const JOB_TURN_SECONDS = 1;

/** Waits for the ends of one queue's jobs, all by one request at a time. */
class JobWaits {
  #ask;
  #ended;
  /** By place: who waits, and when the job was seen unfinished, in milliseconds. */
  #jobs = new Map();
  #running = false;
  #poll = new AbortController();

  constructor(ask, ended) {
    this.#ask = ask;
    this.#ended = ended;
  }

  ended(place, { timeout, signal } = {}) {
    return new Promise((resolve, reject) => {
      const job = this.#jobs.get(place) ?? { callers: new Set(), unfinished: -Infinity };
      const caller = { resolve, reject, leave: () => undefined };
      const give = (error) => {
        this.#leave(place, caller);
        reject(error);
      };
      const aborted = () => give(signal.reason);
      const late = () => give(new QueueyError(`job ${place} has not ended in ${timeout} s`, { code: "ResultTimeout" }));
      const timer = timeout === undefined ? undefined : setTimeout(late, Math.min(timeout * 1000, 2 ** 31 - 1));
      caller.leave = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
      };
      if (signal?.aborted) return give(signal.reason);
      signal?.addEventListener("abort", aborted, { once: true });
      this.#jobs.set(place, job);
      job.callers.add(caller);
      // The request under way does not ask for it.
      if (job.callers.size === 1) this.#poll.abort();
      if (!this.#running) this.#run();
    });
  }

  #leave(place, caller) {
    const job = this.#jobs.get(place);
    caller.leave();
    job?.callers.delete(caller);
    if (job?.callers.size === 0) this.#jobs.delete(place);
    if (!this.#jobs.size) this.#poll.abort();
  }

  #settle(place, settle) {
    for (const caller of this.#jobs.get(place)?.callers ?? []) {
      this.#leave(place, caller);
      settle(caller);
    }
  }

  async #run() {
    this.#running = true;
    while (this.#jobs.size) {
      await slept(0);
      const places = [...this.#jobs.keys()].slice(0, MAX_JOBS_PER_REQUEST);
      const wait = this.#jobs.size > MAX_JOBS_PER_REQUEST ? JOB_TURN_SECONDS : JOB_WAIT_SECONDS;
      const { signal } = (this.#poll = new AbortController());
      try {
        const infos = places.length ? await this.#ask(places, { wait, signal }) : [];
        infos.forEach((info, index) => this.#note(places[index], info));
      } catch (error) {
        if (!signal.aborted) for (const place of places) this.#settle(place, ({ reject }) => reject(error));
      }
    }
    this.#running = false;
    this.#ended();
  }

  #note(place, info) {
    const job = this.#jobs.get(place);
    if (!job) return;
    if (UNFINISHED_STATUSES.has(info.status)) {
      job.unfinished = performance.now();
      this.#jobs.delete(place);
      this.#jobs.set(place, job);
      return;
    }
    // A result since it was seen unfinished is still kept, so a job without one had none.
    const keeps = performance.now() - job.unfinished < (info.kept ?? 0) * 1000;
    const isOpen = keeps && info.status === "done" && info.result === undefined && info.size === undefined;
    this.#settle(place, ({ resolve }) => resolve(isOpen ? { ...info, result: null } : info));
  }
}

function resultOf(job) {
  if (job.status === "done" && job.result !== undefined) return job.result;
  const codes = { done: job.size ? "ResultTooLarge" : "ResultUnknown", failed: "JobFailed" };
  const code = codes[job.status] ?? (/^(expired|removed|superseded)$/.test(job.status) ? "JobGone" : "ResultUnknown");
  const why = job.status === "failed" ? `: ${job.error}: ${job.text}` : "";
  const error = new QueueyError(`job ${placeOf(job)} is ${job.status}${why}`, { code, outcome: "none" });
  throw Object.assign(error, { job });
}

/** Half of a character: what carries UTF-8 replaces it. */
const LONE_SURROGATE = /\p{Surrogate}/u;
const SEGMENT = /^(?!\.{0,2}$)[^/]+$/;
const PLACE = /^(?:[1-9]\d{0,8}:)?[\da-f]{32}$/i;
const HEADER_TEXT = /^[!-~](?:[ -~]*[!-~])?$/;
const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^`|~-]+$/;
const JSON_TYPE = /^application\/json\s*(?:;|$)/i;
const JSON_KINDS = /^\[object (?:Object|Array|String|Number|Boolean|Null|Undefined)\]$/;

/** Returns the value of an argument; throws an error with the value, or `shown` in its place, if it is not valid. */
function checked(isValid, name, value, rule, shown = undefined) {
  if (isValid) return value;
  const text = shown ?? (typeof value === "string" ? JSON.stringify(value) : String(value));
  throw new TypeError(`${name} is ${text.slice(0, 100)}: ${rule}`);
}

const whole = (name, value) => checked(!LONE_SURROGATE.test(value), name, value, "it has half of a character");

/** Returns text as one part of a path: no text leads to another resource than that which it names. */
function segment(name, value) {
  const isValid = typeof value === "string" && SEGMENT.test(value);
  return encodeURIComponent(whole(name, checked(isValid, name, value, 'give text that is not empty, "." or "..", without "/"')));
}

const path = (queue) => `/${segment("queue", checked(!/^_/.test(queue), "queue", queue, 'no name begins with "_"'))}`;

/** Returns where a message is, as the service writes it: its id, or its partition and id. */
function placeOf(message) {
  const place = typeof message === "string" ? message : `${message?.partition}:${message?.message_id ?? message?.key}`;
  return checked(PLACE.test(place), "message", place, "give a message, or its id: [<partition>:]<32 hex digits>");
}

/** Returns the text of a header that carries an argument; `shown` is what an error shows of it. */
const headerText = (name, value, shown) =>
  String(checked(HEADER_TEXT.test(value), name, value, "a header carries only printable ASCII, and no space at its ends", shown));

/** Returns a value as JSON; refuses what has no form in it, such as NaN or a Map. */
function jsonText(value) {
  const text = JSON.stringify(value, (name, each) => {
    const kind = Object.prototype.toString.call(each);
    const isValid = JSON_KINDS.test(kind) && (kind !== "[object Number]" || Number.isFinite(Number(each)));
    return checked(isValid, name || "body", each, "it has no form in JSON", typeof each === "number" ? `${each}` : kind);
  });
  return checked(text !== undefined, "body", text, "it has no form in JSON");
}

/** Returns the bytes of a message's body, and their content type. */
async function contentOf(body, contentType) {
  const given = contentType === undefined ? undefined : headerText("contentType", contentType);
  const isBlob = body instanceof Blob;
  const held = isBlob || body instanceof ArrayBuffer ? new Uint8Array(isBlob ? await body.arrayBuffer() : body) : body;
  if (typeof held !== "string" && !ArrayBuffer.isView(held)) {
    // The service stores a JSON value without a type as application/json.
    return { bytes: new TextEncoder().encode(jsonText(body)), type: JSON_TYPE.test(given) ? undefined : given, isJson: true };
  }
  const isText = typeof held === "string";
  const type = given || (isBlob && body.type) || (isText ? "text/plain" : "application/octet-stream");
  checked(!JSON_TYPE.test(type), "contentType", type, "it would be a batch of messages; give the value itself, which is stored as JSON");
  return { bytes: isText ? whole("body", held) : new Uint8Array(held.buffer, held.byteOffset, held.byteLength).slice(), type };
}

const fields = ({ since, limit, partitions, early, onRead }) =>
  Object.fromEntries(
    Object.entries({ since, limit, partitions, early: early || undefined, read_marks: onRead ? true : undefined }).filter(
      ([, value]) => value !== undefined,
    ),
  );

/** A text that sorts ids as queues do, up to a millionth of a second. */
const timeOf = (id) => id.slice(13, 16) + id.slice(8, 12) + id.slice(0, 8);

/** A text that sorts ids exactly as queues do: by their time, then by their last eight bytes, each of them signed. */
const orderOf = (id) => timeOf(id) + (BigInt(`0x${id.slice(16)}`) ^ 0x8080808080808080n).toString(16).padStart(16, "0");

/** Whether a mark (`read` of `onRead`, `unread` and `markRead`) says that a message was read. */
export function isRead(message, read) {
  const mark = read[message.partition];
  return mark !== undefined && orderOf(message.message_id) <= orderOf(mark);
}

/** The last id of each partition; one without a partition is for all of them, and stands first. */
function last(ids) {
  const found = new Map();
  for (const each of ids) {
    const [id, partition = ""] = each.toLowerCase().split(":").reverse();
    if (!found.has(partition) || orderOf(found.get(partition)) < orderOf(id)) found.set(partition, id);
  }
  return [...found].sort().map(([partition, id]) => (partition ? `${partition}:${id}` : id));
}

/** Messages that were given early and have not come in their place yet: each is given once. */
class GivenEarly {
  #times = new Map();

  isNew({ queue_name: queue, partition, message_id: id, early }) {
    const key = `${partition}:${id}:${queue}`;
    if (!early) return !this.#times.delete(key);
    if (this.#times.has(key)) return false;
    if (this.#times.size >= MAX_EARLY_MESSAGES) this.#times.delete(this.#times.keys().next().value);
    this.#times.set(key, timeOf(id));
    return true;
  }

  /** Forgets those below a cursor: what has not come by then has vanished. */
  passOver(cursor) {
    if (!cursor) return;
    for (const [key, time] of this.#times) {
      if (time >= timeOf(cursor)) return;
      this.#times.delete(key);
    }
  }
}

/** A message with bytes where it has base64. */
function decoded(message) {
  if (message.encoding !== "base64") return message;
  const { encoding, ...rest } = message;
  return { ...rest, body: Uint8Array.from(atob(message.body), (character) => character.charCodeAt(0)) };
}

function refused(status, answer, retryAfter = 0) {
  const told = answer ?? {};
  const errors = told.errors ?? told.error_msg ?? {};
  const code = told.code ?? Object.keys(errors)[0] ?? "Error";
  const text = told.detail ?? Object.entries(errors).map(([name, value]) => `${name}: ${value}`).join("; ");
  return new QueueyError(text || `status ${status}`, { status, code, errors, outcome: told.outcome, retryAfter });
}

/** Milliseconds that the service asks to wait, as far as that is done. */
const askedPause = (error) => Math.min((error?.retryAfter ?? 0) * 1000, MAX_ASKED_PAUSE_MILLISECONDS);

const backoff = (failures, least) =>
  BACKOFF_BASE_MILLISECONDS / 2 +
  Math.random() *
    (Math.min(BACKOFF_CAP_MILLISECONDS, BACKOFF_BASE_MILLISECONDS * 2 ** failures) +
      (failures ? 0 : Math.min(least, MAX_ASKED_PAUSE_MILLISECONDS)));

/** Waits; returns false if that was ended. */
function slept(milliseconds, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve(false);
    const end = () => {
      clearTimeout(timer);
      resolve(false);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve(true);
    }, milliseconds);
    signal?.addEventListener("abort", end, { once: true });
  });
}

/** Takes events from the body of an answer (WHATWG HTML, 9.2), and notes in `place` where to go on. */
async function* events(body, place, signal) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event = { type: "", data: [], id: undefined };
  try {
    for (;;) {
      const { done, value } = await answered(reader.read(), signal);
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line) {
          take(line, event, place);
          continue;
        }
        const { type, data, id } = event;
        event = { type: "", data: [], id: undefined };
        if (data.length) yield { type: type || "message", data: data.join("\n"), id };
        // What was not handed over comes again.
        if (id !== undefined) place.last = id;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function take(line, event, place) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "data") event.data.push(value);
  else if (name === "event") event.type = value;
  else if (name === "id") event.id = value;
  else if (name === "retry" && /^\d+$/.test(value)) place.retry = Number(value);
}

/** Waits for bytes, but not for ever: a connection may be gone without a word. */
async function answered(reading, signal) {
  let timer;
  const silent = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new QueueyError("nothing came for a minute")), SILENCE_TIMEOUT_MILLISECONDS);
  });
  try {
    return await Promise.race([reading, silent]);
  } catch (error) {
    if (signal?.aborted || error instanceof QueueyError) throw error;
    throw new QueueyError("the stream has broken off", {}, error);
  } finally {
    clearTimeout(timer);
  }
}
