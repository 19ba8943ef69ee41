/**
 * Queuey client for browsers and Node: one ES module without dependencies or a build step. Types: queuey.d.ts.
 *
 *     import { Queuey } from "https://queuey.example.com/client/queuey.js";
 *
 *     const queuey = new Queuey("https://queuey.example.com", "shop", { token: () => fetchToken() });
 *     for await (const message of queuey.stream("inbox-ann")) show(message.body);
 */

/** Pauses before retries double with each failure, from the base up to the cap. */
const BACKOFF_BASE_MILLISECONDS = 200;
const BACKOFF_CAP_MILLISECONDS = 5000;
/** Seconds for which a request is repeated, unless the option `deadline` says otherwise. */
const DEADLINE_SECONDS = 30;
/** Max milliseconds from the start of the last attempt, after a shortened pause, to the deadline. */
const MAX_LAST_ATTEMPT_MILLISECONDS = 1000;
/** Timers with longer times fire at once. */
const MAX_TIMER_MILLISECONDS = 2 ** 31 - 1;
/** More ids make an address that is too long. */
const MAX_IDS_PER_REQUEST = 200;
/** Longer pauses requested by the service (Retry-After, `retry:`) are cut to this. */
const MAX_RETRY_AFTER_MILLISECONDS = 30_000;
/** A stream or membership that lasted longer than this counts as stable. */
const MIN_STABLE_MILLISECONDS = 10_000;
/** A stream without a byte for this long counts as broken; the service writes every 25 s. */
const SILENCE_TIMEOUT_MILLISECONDS = 60_000;
/** Max early messages that are remembered; those forgotten may come twice. */
const MAX_EARLY_MESSAGES = 10_000;
/** Max seconds that `markRead` waits for the mark of an early message. */
const MAX_PENDING_SECONDS = 10;
const TEMPORARY_STATUSES = new Set([429, 502, 503, 504]);
/** A member's long polls time out this many seconds after the wait that they request. */
const RESPONSE_MARGIN_SECONDS = 2;
/** A partition is given back after this fraction of the time allowed, even if its message is still being handled. */
const GIVE_BACK_FRACTION = 0.8;
/** Seconds that a member's read waits for messages. */
const READ_WAIT_SECONDS = 20;
/** Shorter wait for members with partitions of more queues than fit in one read, so that each queue gets its turn. */
const READ_TURN_SECONDS = 1;
const MAX_QUEUES_PER_READ = 100;
/** An id that sorts before those of all messages. */
const EARLIEST = "00000000000010008080808080808080";

/** An error response of the service, or a request without a response. */
export class QueueyError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, errors?: Record<string, string>, outcome?: string, retryAfter?: number}} [details]
   * @param {unknown} [cause]
   */
  constructor(message, details = {}, cause = undefined) {
    super(message, { cause });
    this.name = "QueueyError";
    /** HTTP status; 0 without a response. */
    this.status = details.status ?? 0;
    /** Kind of error, such as "MemberGone". */
    this.code = details.code ?? "NoAnswer";
    /** Descriptions of what is wrong, by field. */
    this.errors = details.errors ?? {};
    /** Whether the request changed anything: "none" or "unknown". */
    this.outcome = details.outcome ?? (this.status && this.status < 500 ? "none" : "unknown");
    /** Seconds to wait before a retry, from the header Retry-After. */
    this.retryAfter = details.retryAfter ?? 0;
  }
}

/** Client for the queues of one application. */
export class Queuey {
  #baseUrl;
  #options;
  #token = "";
  /** Pollers for the results of jobs, by queue path. */
  #jobPollers = new Map();

  /**
   * @param {string} url
   * @param {string} application
   * @param {import("./queuey.js").Options} [options]
   */
  constructor(url, application, options = {}) {
    requireKnown("Queuey", options);
    if (options.key && options.token) throw new TypeError("give a key or a token, not both");
    const baseUrl = `${url.replace(/\/+$/, "")}/v1/${encodeSegment("application", application)}`;
    const { href, search, hash, username, password } = new URL(baseUrl, globalThis.location?.href);
    const isValid = !(search || hash || username || password || /[\0-\x20\x7f\\?#]/.test(url)) && /^https?:/.test(href);
    const { deadline = DEADLINE_SECONDS } = options;
    requireValid(deadline >= 0, "deadline", deadline, "it is a number of seconds, or 0 to send each request once");
    const rule = "it begins with http:// or https://, and has no query, fragment, user or spaces";
    this.#baseUrl = requireValid(isValid, "url", href, rule, username || password ? "not shown" : url);
    this.#options = options;
  }

  /** Returns the caller's names and rights. */
  async me(options = {}) {
    requireKnown("me", options);
    return this.#request("GET", "/_me", { ...options, isIdempotent: true });
  }

  /** Returns the names of the queues that the caller may read by name, not by a pattern. */
  async myQueues(options = {}) {
    requireKnown("myQueues", options);
    const { rights } = await this.me(options);
    return rights.filter((right) => right.allow.includes("read")).flatMap((right) => right.queues ?? []);
  }

  /** Creates a queue. Succeeds as well if it already exists with the same fields. */
  async createQueue(name, fields = {}, options = {}) {
    requireKnown("createQueue", fields, QUEUE_FIELDS);
    requireKnown("createQueue", options);
    const body = toJson({ ...fields, queue_name: name });
    return this.#request("POST", "", { ...options, body, type: "application/json", isIdempotent: true });
  }

  /** Sends a message: text, bytes, or any JSON value. Retries after failures do not store it twice. */
  async send(queue, body, options = {}) {
    requireKnown("send", options);
    const target = queuePath(queue);
    const headers = { "Idempotency-Key": toHeaderValue("idempotencyKey", options.idempotencyKey ?? crypto.randomUUID()) };
    const optionHeaders = { ttl: "X-TTL", partition: "X-Partition", key: "X-Message-Key", delay: "X-Delay", after: "X-After" };
    for (const [name, header] of Object.entries(optionHeaders)) {
      if (options[name] !== undefined) headers[header] = toHeaderValue(name, options[name]);
    }
    for (const [name, value] of Object.entries(options.headers ?? {})) {
      requireValid(HEADER_NAME.test(name), "the name of a header", name, "it has other characters than names of headers");
      headers[`X-Header-${name}`] = value === "" ? "" : toHeaderValue(`headers.${name}`, value);
    }
    const content = await encodeBody(body, options.contentType);
    if (content.isJson) headers["X-Encoding"] = "json";
    const request = { ...options, headers, body: content.bytes, type: content.type, isIdempotent: true };
    const stored = { ...(await this.#request("POST", target, request)).messages[0] };
    const methods = {
      status: async (callOptions) => (await this.jobs(queue, [stored], callOptions))[0],
      state: async (callOptions) => (await this.jobs(queue, [stored], { ...callOptions, states: true }))[0].state,
      result: (callOptions) => this.result(queue, stored, callOptions),
    };
    for (const [name, value] of Object.entries(methods)) Object.defineProperty(stored, name, { value });
    return stored;
  }

  /** Returns the status of up to 100 jobs; with `wait`, once one of them has ended or so many seconds are over. */
  async jobs(queue, jobs, options = {}) {
    requireKnown("jobs", options);
    const { wait, states } = options;
    const target = `${queuePath(queue)}/jobs/${[jobs].flat().map(toMessageId).join(",")}`;
    return (await this.#request("GET", target, { ...options, query: { wait, states }, isIdempotent: true })).jobs;
  }

  /**
   * Waits until a job has ended; returns its result, or throws a QueueyError with the job. Concurrent calls for the same
   * queue share requests. With a timeout, it waits so long even if the service does not answer.
   */
  async result(queue, job, options = {}) {
    requireKnown("result", options);
    const { timeout } = options;
    requireValid(timeout === undefined || typeof timeout === "number", "timeout", timeout, "it is a number of seconds");
    const key = queuePath(queue);
    let poller = this.#jobPollers.get(key);
    if (!poller) {
      const fetchJobs = (ids, callOptions) => this.jobs(queue, ids, callOptions);
      poller = new JobPoller(fetchJobs, () => this.#jobPollers.delete(key));
      this.#jobPollers.set(key, poller);
    }
    return unwrapResult(await poller.waitFor(toMessageId(job), options));
  }

  /** Reads messages of a queue in order of time, starting at `since`. Pass the returned `cursor` as `since` to read on. */
  async read(queue, options = {}) {
    requireKnown("read", options);
    const { since, limit, partitions, order, wait, early, merge = true } = options;
    const query = { since, limit, partitions: partitions ?? "*", order, wait, early, merge: merge ? 1 : undefined };
    const page = await this.#request("GET", queuePath(queue), { ...options, query, isIdempotent: true });
    return { messages: page.messages.map(decodeMessage), cursor: page.cursor, more: page.more };
  }

  /** Deletes messages, passed as objects or ids. */
  async delete(queue, ...messages) {
    const [values, options] = splitOptions(messages);
    const ids = values.map(toMessageId);
    for (let start = 0; start < ids.length; start += MAX_IDS_PER_REQUEST) {
      const target = `${queuePath(queue)}/${ids.slice(start, start + MAX_IDS_PER_REQUEST).join(",")}`;
      await this.#request("DELETE", target, { ...options, isIdempotent: true });
    }
  }

  /**
   * Marks messages as read, in each partition up to the last one passed. A mark moves backwards only with `back`. The mark
   * of an early message is set once its position is final.
   */
  async markRead(queue, seen, options = {}) {
    requireKnown("markRead", options);
    const ids = [seen].flat().map(toMessageId);
    const body = toJson({ until: lastIds(ids).join(","), back: options.back });
    const request = { ...options, body, type: "application/json", isIdempotent: true };
    const putMark = () => this.#request("PUT", `${queuePath(queue)}/read`, request);
    const mark = await putMark();
    if (!mark.pending || mark.pending > MAX_PENDING_SECONDS) return mark;
    return (await sleep(mark.pending * 1000, options.signal)) ? putMark() : mark;
  }

  /** Counts the caller's unread messages in the named queues, or (undefined) in all that it may read. */
  async unread(queues = undefined, options = {}) {
    requireKnown("unread", options);
    const body = toJson({ queues: queues && [queues].flat(), limit: options.limit });
    const request = { ...options, body, type: "application/json", isIdempotent: true };
    return (await this.#request("POST", "/_unread", request)).queues;
  }

  /** Claims messages: no other worker gets them for `ttl` seconds. Each has a `receipt`. */
  async claim(queue, options = {}) {
    requireKnown("claim", options);
    const { limit, ttl, wait, partitions } = options;
    const query = { limit, ttl, wait, partitions, states: true };
    const request = { ...options, query, isIdempotent: true };
    return (await this.#request("POST", `${queuePath(queue)}/claims`, request)).messages.map(decodeMessage);
  }

  /** Marks claimed messages as done. */
  async acknowledge(queue, ...messages) {
    await this.#updateClaims(queue, "ack", messages);
  }

  /** Marks a claimed message as done and stores the result of its job: any JSON value. */
  async acknowledgeWith(queue, message, result, options = {}) {
    requireKnown("acknowledgeWith", options);
    const receipt = typeof message === "string" ? message : message.receipt;
    const body = toJson({ receipts: [receipt], results: { [receipt]: result } });
    const request = { ...options, body, type: "application/json", isIdempotent: true };
    await this.#request("POST", `${queuePath(queue)}/claims/ack`, request);
  }

  /**
   * Gives up claims, so that the messages can be claimed again. With `{ begun: false }` as the last argument their attempts
   * do not count, at most 10 times for a message.
   */
  async release(queue, ...messages) {
    const [values, { begun, ...options }] = splitOptions(messages, ["begun", "signal"]);
    await this.#updateClaims(queue, "release", options.signal ? [...values, options] : values, { begun });
  }

  /** Extends claims to `ttl` seconds from now; returns a result for each. Stop working on those with `cancelled`. */
  async renew(queue, ttl, ...messages) {
    return (await this.#updateClaims(queue, "renew", messages, { ttl })).results;
  }

  /** Cancels a job. Returns `removed`; `claimed` if its worker will be asked to stop; or `done` if it had already ended. */
  async cancelJob(queue, message, options = {}) {
    requireKnown("cancelJob", options);
    return this.#updateJob(queue, message, "cancel", options);
  }

  /** Makes a job that was sent or released with a delay deliverable now. Returns `waiting`, `claimed` or `done`. */
  async retryJob(queue, message, options = {}) {
    requireKnown("retryJob", options);
    return this.#updateJob(queue, message, "retry", options);
  }

  async #updateJob(queue, message, action, options) {
    const target = `${queuePath(queue)}/jobs/${toMessageId(message)}/${action}`;
    return (await this.#request("POST", target, { ...options, isIdempotent: true })).job;
  }

  async #updateClaims(queue, action, messages, fields = {}) {
    const [values, options] = splitOptions(messages);
    const receipts = values.map((message) => (typeof message === "string" ? message : message.receipt));
    const request = { ...options, body: toJson({ receipts, ...fields }), type: "application/json", isIdempotent: true };
    return this.#request("POST", `${queuePath(queue)}/claims/${action}`, request);
  }

  /**
   * Yields messages as they arrive in one queue, in several, or (undefined) in all that the caller may read. Reconnects
   * after failures, restarts of the service and when tokens expire, without gaps or duplicates. With `early`, messages come
   * as soon as they are stored; those that may still vanish have `early` set.
   *
   * @param {string | string[] | undefined} queues
   * @param {import("./queuey.js").StreamOptions} [options]
   */
  async *stream(queues = undefined, options = {}) {
    requireKnown("stream", options);
    const isSingle = typeof queues === "string";
    const target = isSingle ? queuePath(queues) : "/_stream";
    const body = isSingle ? undefined : toJson({ ...streamParameters(options), ...(queues && { queues }) });
    const query = isSingle ? streamParameters(options) : undefined;
    const position = { lastEventId: options.lastEventId ?? "", retryMilliseconds: 1000, hasEvents: false };
    const earlyMessages = new EarlyMessages();
    /** Consecutive requests without an event. */
    let failures = 0;
    let refreshToken = false;
    /** Consecutive token refreshes without a stable stream. */
    let refreshes = 0;
    for (;;) {
      let error;
      const startedAt = performance.now();
      const isStable = () => performance.now() - startedAt > MIN_STABLE_MILLISECONDS;
      const isTokenNew = refreshToken;
      refreshToken = position.hasEvents = false;
      const connection = new AbortController();
      const disconnect = () => connection.abort(options.signal?.reason);
      options.signal?.addEventListener("abort", disconnect);
      if (options.signal?.aborted) disconnect();
      try {
        const resume = position.lastEventId && { "Last-Event-ID": toHeaderValue("lastEventId", position.lastEventId) };
        const headers = { Accept: "text/event-stream", ...resume };
        const { signal } = connection;
        const request = { headers, query, body, type: "application/json", signal, refreshToken: isTokenNew };
        const response = await withSilenceTimeout(this.#requestOnce(isSingle ? "GET" : "POST", target, request));
        options.onState?.("open");
        if (!response.body) throw new QueueyError("the answer has no events");
        for await (const event of parseEvents(response.body, position)) {
          if (event.type === "message") {
            const message = JSON.parse(event.data);
            const isNew = earlyMessages.accept(message);
            earlyMessages.forgetBelow(event.id);
            if (isNew) yield decodeMessage(message);
          } else if (event.type === "gone") options.onGone?.(JSON.parse(event.data));
          else if (event.type === "read") {
            const unread = JSON.parse(event.data);
            earlyMessages.forgetBelow(event.id);
            // The service counts up to its cursor, so it leaves out messages that were yielded early.
            if (!unread.more) unread.unread += earlyMessages.countUnread(unread);
            options.onRead?.({ ...(isSingle && { queue_name: queues }), ...unread, cursor: event.id });
          } else if (event.type === "expiring") {
            // A new token that already expires is used until it does; refreshing it at once could go on forever.
            refreshToken = typeof this.#options.token === "function" && (!isTokenNew || isStable());
            if (refreshToken) break;
          } else if (event.type === "bye") {
            const problem = JSON.parse(event.data) ?? {};
            const isFatal = problem.status && !TEMPORARY_STATUSES.has(problem.status) && problem.status !== 401;
            if (isFatal) throw toError(problem.status, problem);
            refreshToken = problem.status === 401;
            break;
          }
        }
      } catch (exception) {
        if (options.signal?.aborted) return;
        error = exception;
        if (!isTemporary(error)) throw error;
      } finally {
        options.signal?.removeEventListener("abort", disconnect);
        disconnect();
      }
      if (options.signal?.aborted) return;
      options.onState?.("waiting", error);
      if (refreshToken) refreshes = isStable() ? 1 : refreshes + 1;
      failures = position.hasEvents ? 0 : failures + 1;
      // The pause is random, so that not all clients of a restarted service reconnect at once.
      const retry = Math.min(position.retryMilliseconds, MAX_RETRY_AFTER_MILLISECONDS) * (1 + Math.random() / 2);
      const pause = refreshToken
        ? backoff(refreshes - 1)
        : Math.max(retryAfterMilliseconds(error), retry, backoff(failures));
      if (!(await sleep(refreshToken && refreshes === 1 ? 0 : pause, options.signal))) return;
    }
  }

  /**
   * Yields messages of the partitions that this member of a consumer group owns, in order within each partition. Call
   * `await message.commit()` for each. Rejoins after failures and restarts of the service, maybe with other partitions.
   *
   * @param {string} group
   * @param {string | string[] | undefined} queues
   * @param {import("./queuey.js").ConsumeOptions} [options]
   */
  async *consume(group, queues = undefined, options = {}) {
    requireKnown("consume", options);
    const { patterns, session, revoke, instance, grace, name, signal, onState } = options;
    const target = `/_groups/${encodeSegment("group", group)}`;
    const subscription = { queues: queues && [queues].flat(), patterns: patterns && [patterns].flat() };
    const body = toJson({ ...subscription, session, revoke, instance, grace, name });
    const request = (...args) => this.#requestOnce(...args);
    /** Consecutive failed joins and short memberships; two members with the same instance name keep ending each other's. */
    let failures = 0;
    while (!signal?.aborted) {
      const sentAt = now();
      let member, error;
      try {
        const join = (limited) => this.#requestJson("POST", `${target}/members`, { body, type: "application/json", signal: limited });
        member = await limitTime(DEADLINE_SECONDS * 1000, signal, join);
      } catch (exception) {
        if (signal?.aborted) return;
        if (!isTemporary(exception)) throw exception;
        error = exception;
      }
      if (member) {
        onState?.("open");
        yield* new Membership(request, group, member, sentAt, options).messages();
        if (secondsSince(sentAt) * 1000 > MIN_STABLE_MILLISECONDS) failures = 0;
      }
      if (signal?.aborted) return;
      onState?.("waiting", error);
      await sleep(Math.max(retryAfterMilliseconds(error), backoff((failures += 1))), signal);
    }
  }

  /**
   * Returns the JSON of the answer to a request. Until the deadline, retries temporary failures if the request is idempotent
   * or has changed nothing. The time that the service is asked to wait does not count.
   */
  async #request(method, target, request) {
    const { signal, isIdempotent, wait } = request;
    const { deadline = DEADLINE_SECONDS } = this.#options;
    const end = performance.now() + ((deadline || DEADLINE_SECONDS) + (Number(wait) || 0)) * 1000;
    let isLast = deadline === 0;
    const attempt = (limited) => this.#requestJson(method, target, { ...request, signal: limited });
    for (let failures = 1; ; failures += 1) {
      try {
        return await limitTime(end - performance.now(), signal, attempt);
      } catch (error) {
        const canRetry = isTemporary(error) && (isIdempotent || error.outcome === "none");
        const remaining = end - performance.now();
        const asked = retryAfterMilliseconds(error);
        if (!canRetry || isLast || signal?.aborted || asked >= remaining) throw error;
        let pause = Math.max(asked, backoff(failures));
        if ((isLast = pause >= remaining)) pause = Math.max(asked, remaining / 2, remaining - MAX_LAST_ATTEMPT_MILLISECONDS);
        if (!(await sleep(pause, signal))) throw error;
      }
    }
  }

  /** Sends a request once, as `#requestOnce`, and returns the JSON of its answer. */
  async #requestJson(method, target, request) {
    const response = await this.#requestOnce(method, target, request);
    const text = await response.text().catch((error) => {
      throw new QueueyError("the answer has broken off", {}, error);
    });
    try {
      return text ? JSON.parse(text) : undefined;
    } catch (error) {
      const details = { status: response.status, code: "InvalidAnswer", outcome: "unknown" };
      throw new QueueyError("the answer is not from Queuey: check the service's address", details, error);
    }
  }

  /** Sends a request without retries, except with a new token after status 401; throws if the response is not ok. */
  async #requestOnce(method, target, request) {
    let response = await this.#fetch(method, target, request, request.refreshToken);
    if (response.status === 401 && this.#options.token && !request.refreshToken) {
      await response.body?.cancel();
      response = await this.#fetch(method, target, request, true);
    }
    if (response.ok) return response;
    const text = await response.text().catch(() => "");
    let problem = {};
    try {
      problem = JSON.parse(text);
    } catch {
      problem = { detail: text };
    }
    throw toError(response.status, problem, readRetryAfter(response.headers));
  }

  async #fetch(method, target, request, refreshToken = false) {
    const url = new URL(this.#baseUrl + target);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(requireWellFormed(name, value)));
    }
    const headers = { Accept: "application/problem+json", ...request.headers };
    const authorization = await this.#getAuthorization(refreshToken);
    if (authorization) headers.Authorization = authorization;
    if (request.body !== undefined && request.type) headers["Content-Type"] = request.type;
    const fetch = this.#options.fetch ?? globalThis.fetch;
    try {
      return await fetch(url, { method, headers, body: request.body, signal: request.signal, cache: "no-store" });
    } catch (error) {
      throw new QueueyError(`no answer from ${url.origin}`, {}, error);
    }
  }

  async #getAuthorization(refreshToken) {
    const { key, token } = this.#options;
    if (key) return `Application ${toHeaderValue("key", key, "not shown")}`;
    if (!token) return "";
    if (typeof token === "string") return `Bearer ${toHeaderValue("token", token, "not shown")}`;
    if (refreshToken || !this.#token) {
      try {
        this.#token = await token({ refresh: refreshToken });
      } catch (error) {
        if (error instanceof QueueyError) throw error;
        throw new QueueyError("the function that gives tokens has failed", { code: "NoToken", outcome: "none" }, error);
      }
    }
    return `Bearer ${toHeaderValue("token", this.#token, "not shown")}`;
  }
}

/** Ownership of a partition by a member, from its assignment until it ends. */
class Ownership {
  /** Messages that were read but not yielded yet. */
  messages = [];
  /** Set when another member waits for the partition: it must be given back `seconds` after `since`. */
  deadline = undefined;
  /** Whether the service has confirmed that it was given back. */
  isConfirmed = false;
  #controller = new AbortController();

  constructor(queue, partition, { epoch, offset }) {
    this.queue = queue;
    this.partition = partition;
    this.epoch = epoch;
    /** Id of the last message that was read. */
    this.position = offset ?? EARLIEST;
  }

  /** Aborted when the ownership ends. */
  get signal() {
    return this.#controller.signal;
  }

  end() {
    this.messages = [];
    this.deadline = undefined;
    this.#controller.abort();
  }
}

/** A membership in a group, from the join until it leaves or its session expires: docs/architecture-groups.md. */
class Membership {
  #request;
  #group;
  #options;
  #id;
  /** Max seconds that the service holds a heartbeat. */
  #heartbeatWait;
  /** Length of the session in seconds, which starts when the last answered heartbeat was sent. */
  #session;
  #sessionStart;
  #isEnded = false;
  /** Ownerships by partition and queue. */
  #ownerships = new Map();
  /** The last ownership of each partition that was given back. It is reported until the service has confirmed it. */
  #givenBack = new Map();
  /** The ownership whose message is being handled. */
  #current;
  /** Aborts the heartbeat in flight, or the pause before the next one, so that the next is sent at once. */
  #heartbeatController = new AbortController();
  /** Aborts the read in flight; undefined if there is none. */
  #readController;
  #consecutiveReadFailures = 0;
  #readCount = 0;
  /** Resolves when `messages` should check again whether there is anything to yield, or to stop. */
  #change;
  #resolveChange = () => undefined;

  constructor(request, group, { member, session, wait }, sentAt, options) {
    [this.#request, this.#group, this.#options] = [request, encodeSegment("group", group), options];
    [this.#id, this.#session, this.#heartbeatWait, this.#sessionStart] = [member, session, wait, sentAt];
    this.#notifyChange();
  }

  /** Yields messages until the session expires or the caller stops; then leaves the group. */
  async *messages() {
    const { signal } = this.#options;
    const onAbort = () => this.#notifyChange();
    signal?.addEventListener("abort", onAbort, { once: true });
    this.#sendHeartbeats();
    try {
      while (!signal?.aborted && !this.#isOver()) {
        const ownership = this.#nextOwnership();
        if (!ownership) {
          if (!this.#readController) this.#read();
          await this.#change;
          continue;
        }
        this.#current = ownership;
        yield this.#toGroupMessage(ownership, ownership.messages.shift());
        this.#current = undefined;
        if (ownership.deadline) this.#heartbeatController.abort();
      }
    } finally {
      signal?.removeEventListener("abort", onAbort);
      await this.#leave();
    }
  }

  /** Returns the next ownership that has a message, round-robin. */
  #nextOwnership() {
    for (const [key, ownership] of this.#ownerships) {
      if (ownership.deadline || !ownership.messages.length) continue;
      this.#ownerships.delete(key);
      this.#ownerships.set(key, ownership);
      return ownership;
    }
  }

  #toGroupMessage(ownership, message) {
    const commit = () => this.#commit(ownership, message.message_id);
    const groupMessage = { ...decodeMessage(message), queue_name: ownership.queue };
    return Object.defineProperties(groupMessage, { signal: { value: ownership.signal }, commit: { value: commit } });
  }

  /** Commits an offset; returns false if the ownership ends first. */
  async #commit(ownership, id) {
    const commits = { [ownership.partition]: { epoch: ownership.epoch, offset: id } };
    const request = { body: toJson({ member: this.#id, commits }), type: "application/json", signal: ownership.signal };
    for (let failures = 0; !ownership.signal.aborted && !this.#isOver(); ) {
      try {
        await this.#request("PUT", `${queuePath(ownership.queue)}/offsets/${this.#group}`, request);
        return true;
      } catch (error) {
        if (error.code === "MemberGone") this.#end();
        else if (error.code === "NotOwner" || error.code === "InvalidQueueName") this.#drop(ownership);
        // Retrying is safe even if the commit had succeeded: offsets never move backwards.
        else await sleep(this.#retryPause((failures += 1), error), ownership.signal);
      }
    }
    return false;
  }

  #isOver() {
    return this.#isEnded || !(secondsSince(this.#sessionStart) < this.#session);
  }

  /** Milliseconds to pause after a failure, never beyond the end of the session. */
  #retryPause(failures, error) {
    const pause = Math.max(retryAfterMilliseconds(error), backoff(failures));
    return Math.min(pause, this.#remainingMilliseconds());
  }

  #remainingMilliseconds() {
    return Math.min(Math.max(0, this.#session - secondsSince(this.#sessionStart)) * 1000, MAX_TIMER_MILLISECONDS);
  }

  /** Sends heartbeats one after another until the session is over. */
  async #sendHeartbeats() {
    // The first heartbeat does not wait: it confirms the join, and its response assigns partitions.
    let wait = 0;
    for (let failures = 0; !this.#isOver(); ) {
      this.#giveBack();
      const reported = [...this.#ownerships.values()];
      const givenBack = [...this.#givenBack.values()].filter(({ isConfirmed }) => !isConfirmed);
      const { deadline } = this.#current ?? {};
      if (deadline) wait = Math.max(0, Math.min(wait, deadline.seconds - secondsSince(deadline.since)));
      const body = toJson({ owned: epochsByQueue(reported), given_back: epochsByQueue(givenBack), wait });
      const sentAt = now();
      const controller = (this.#heartbeatController = new AbortController());
      const { signal } = controller;
      let isTimedOut = false;
      const onTimeout = () => controller.abort((isTimedOut = true));
      const timer = setTimeout(onTimeout, Math.min((wait + RESPONSE_MARGIN_SECONDS) * 1000, this.#remainingMilliseconds()));
      try {
        const response = await this.#request("POST", this.#target, { body, type: "application/json", signal });
        const heartbeat = await response.json();
        // A response after the end of the session must be ignored.
        if (this.#isOver()) break;
        [this.#sessionStart, this.#session, this.#heartbeatWait, failures] = [sentAt, heartbeat.session, heartbeat.wait, 0];
        for (const ownership of givenBack) ownership.isConfirmed = true;
        this.#applyHeartbeat(heartbeat, reported, sentAt);
      } catch (error) {
        if (error.code === "MemberGone" || error.status === 401) break;
        // No pause if the heartbeat was aborted to give partitions back.
        if (!signal.aborted || isTimedOut) {
          this.#heartbeatController = new AbortController();
          await sleep(this.#retryPause((failures += 1), error), this.#heartbeatController.signal);
        }
      } finally {
        clearTimeout(timer);
      }
      wait = this.#heartbeatWait;
    }
    this.#end();
  }

  get #target() {
    return `/_groups/${this.#group}/members/${this.#id}`;
  }

  /** Gives back the partitions that other members wait for; the current one only once its deadline has passed. */
  #giveBack() {
    for (const [key, ownership] of this.#ownerships) {
      const { deadline } = ownership;
      if (!deadline || (ownership === this.#current && secondsSince(deadline.since) < deadline.seconds)) continue;
      this.#drop(ownership);
      this.#givenBack.set(key, ownership);
    }
  }

  /** Applies the response to a heartbeat that was sent at `sentAt` and reported the given ownerships. */
  #applyHeartbeat({ take, give_back: giveBack, lost }, reported, sentAt) {
    for (const [queue, partitions] of Object.entries(take)) {
      for (const [partition, assignment] of Object.entries(partitions)) {
        const ownership = new Ownership(queue, Number(partition), assignment);
        const key = ownershipKey(ownership);
        const previous = this.#ownerships.get(key);
        const givenBack = this.#givenBack.get(key);
        if (previous?.epoch >= ownership.epoch) continue;
        if (givenBack?.epoch >= ownership.epoch) {
          // The response was made before the service had recorded that: give it back again.
          if (givenBack.epoch === ownership.epoch) givenBack.isConfirmed = false;
          continue;
        }
        if (previous) this.#drop(previous);
        this.#ownerships.set(key, ownership);
        this.#readController?.abort();
      }
    }
    for (const [queue, partitions] of Object.entries(giveBack)) {
      for (const [partition, { epoch, within }] of Object.entries(partitions)) {
        const ownership = new Ownership(queue, Number(partition), { epoch });
        const key = ownershipKey(ownership);
        const existing = this.#ownerships.get(key);
        const highest = Math.max(existing?.epoch ?? 0, this.#givenBack.get(key)?.epoch ?? 0);
        if (existing?.epoch === epoch) existing.deadline ??= { since: sentAt, seconds: within * GIVE_BACK_FRACTION };
        // The response that assigned the partition was lost.
        else if (epoch >= highest) this.#givenBack.set(key, ownership);
      }
    }
    for (const ownership of reported) if (lost[ownership.queue]?.includes(ownership.partition)) this.#drop(ownership);
    this.#notifyChange();
  }

  #drop(ownership) {
    const key = ownershipKey(ownership);
    if (this.#ownerships.get(key) === ownership) this.#ownerships.delete(key);
    ownership.end();
    this.#readController?.abort();
  }

  /** Reads the next messages of all partitions; waits for some to arrive. */
  async #read() {
    const queues = new Map();
    for (const ownership of this.#ownerships.values()) {
      if (!ownership.deadline) queues.set(ownership.queue, [...(queues.get(ownership.queue) ?? []), ownership]);
    }
    if (!queues.size) return;
    // Each read starts with another queue, because a response may be too short for the messages of all.
    const start = (this.#readCount += 1) % queues.size;
    const batch = [...queues.values(), ...queues.values()].slice(start, start + Math.min(queues.size, MAX_QUEUES_PER_READ));
    const wait = queues.size > batch.length ? READ_TURN_SECONDS : READ_WAIT_SECONDS;
    const body = toJson({ queues: batch.map(toReadRange), wait });
    const controller = (this.#readController = new AbortController());
    const { signal } = controller;
    const timer = setTimeout(() => controller.abort(), (READ_WAIT_SECONDS + RESPONSE_MARGIN_SECONDS) * 1000);
    try {
      const response = await this.#request("POST", "/_read", { body, type: "application/json", signal });
      const { queues: pages } = await response.json();
      pages.forEach(({ messages = [] }, index) => this.#addMessages(batch[index], messages));
      const problem = pages.find((page) => page.error_msg);
      if (problem) throw toError(0, problem);
      this.#consecutiveReadFailures = 0;
    } catch (error) {
      if (!signal.aborted) await sleep(this.#retryPause((this.#consecutiveReadFailures += 1), error), signal);
    } finally {
      clearTimeout(timer);
      this.#readController = undefined;
      this.#notifyChange();
    }
  }

  /** Adds messages to the ownerships for which they were read, unless those have ended since. */
  #addMessages(ownerships, messages) {
    for (const message of messages) {
      const ownership = ownerships.find(({ partition }) => partition === message.partition);
      if (ownership.signal.aborted) continue;
      ownership.messages.push(message);
      ownership.position = message.message_id;
    }
  }

  #notifyChange() {
    this.#resolveChange();
    this.#change = new Promise((resolve) => (this.#resolveChange = resolve));
  }

  #end() {
    this.#isEnded = true;
    for (const ownership of [...this.#ownerships.values()]) this.#drop(ownership);
    this.#readController?.abort();
    this.#heartbeatController.abort();
    this.#notifyChange();
  }

  async #leave() {
    const [isOver, milliseconds] = [this.#isOver(), this.#remainingMilliseconds()];
    this.#end();
    if (isOver) return;
    const query = { return: this.#options.instance ? 1 : undefined };
    const signal = AbortSignal.timeout(Math.ceil(milliseconds));
    await this.#request("DELETE", this.#target, { query, signal }).catch(() => undefined);
  }
}

const ownershipKey = ({ queue, partition }) => `${partition}:${queue}`;

/** Returns the part of a read request for the ownerships of one queue. */
const toReadRange = (ownerships) => ({
  queue_name: ownerships[0].queue,
  partitions: ownerships.map(({ partition }) => partition),
  after: ownerships.map(({ partition, position }) => `${partition}:${position}`).join(),
});

/** Returns the epochs of ownerships by queue and partition, as in heartbeats. */
function epochsByQueue(ownerships) {
  const epochs = {};
  for (const { queue, partition, epoch } of ownerships) (epochs[queue] ??= {})[partition] = epoch;
  return epochs;
}

/** Reads two clocks: the monotonic one may stop while the machine sleeps, the wall clock may be adjusted. */
const now = () => ({ monotonic: performance.now(), wall: Date.now() });

/** Seconds since `now()` returned `start`, by the clock that shows more. */
const secondsSince = (start) => Math.max(performance.now() - start.monotonic, Date.now() - start.wall) / 1000;

/** Whether a retry may succeed: there was no response, or the service is busy or unavailable. */
const isTemporary = (error) => error instanceof QueueyError && (error.status === 0 || TEMPORARY_STATUSES.has(error.status));

const UNFINISHED_STATUSES = new Set(["waiting", "delayed", "claimed", "retrying"]);
const MAX_JOBS_PER_REQUEST = 100;
/** Seconds that a request waits for jobs to end. */
const JOB_WAIT_SECONDS = 20;
/** Shorter wait if there are more jobs than fit in one request, so that each job gets its turn. */
const JOB_TURN_SECONDS = 1;

/** Waits for jobs of one queue to end, with one request at a time for all of them. */
class JobPoller {
  #fetchJobs;
  #onIdle;
  #failures = 0;
  /** By id: the callers that wait, and the `performance.now()` at which the job was last seen unfinished. */
  #jobs = new Map();
  #isRunning = false;
  /** Aborts the request in flight. */
  #controller = new AbortController();

  constructor(fetchJobs, onIdle) {
    this.#fetchJobs = fetchJobs;
    this.#onIdle = onIdle;
  }

  /** Returns a promise of the job once it has ended. */
  waitFor(id, { timeout, signal } = {}) {
    return new Promise((resolve, reject) => {
      const job = this.#jobs.get(id) ?? { callers: new Set(), lastUnfinished: -Infinity };
      const caller = { resolve, reject, timeout, cleanUp: () => undefined };
      const fail = (error) => {
        this.#removeCaller(id, caller);
        reject(error);
      };
      const onAbort = () => fail(signal.reason);
      const onTimeout = () => fail(new QueueyError(`job ${id} has not ended in ${timeout} s`, { code: "ResultTimeout" }));
      const timer = timeout === undefined ? undefined : setTimeout(onTimeout, Math.min(timeout * 1000, MAX_TIMER_MILLISECONDS));
      caller.cleanUp = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
      };
      if (signal?.aborted) return fail(signal.reason);
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#jobs.set(id, job);
      job.callers.add(caller);
      // The request in flight does not include a new job.
      if (job.callers.size === 1) this.#controller.abort();
      if (!this.#isRunning) this.#run();
    });
  }

  #removeCaller(id, caller) {
    const job = this.#jobs.get(id);
    caller.cleanUp();
    job?.callers.delete(caller);
    if (job?.callers.size === 0) this.#jobs.delete(id);
    if (!this.#jobs.size) this.#controller.abort();
  }

  #settle(id, settleCaller, canSettle = () => true) {
    for (const caller of [...(this.#jobs.get(id)?.callers ?? [])].filter(canSettle)) {
      this.#removeCaller(id, caller);
      settleCaller(caller);
    }
  }

  async #run() {
    this.#isRunning = true;
    while (this.#jobs.size) {
      await sleep(0);
      const ids = [...this.#jobs.keys()].slice(0, MAX_JOBS_PER_REQUEST);
      const wait = this.#jobs.size > MAX_JOBS_PER_REQUEST ? JOB_TURN_SECONDS : JOB_WAIT_SECONDS;
      const { signal } = (this.#controller = new AbortController());
      try {
        const infos = ids.length ? await this.#fetchJobs(ids, { wait, signal }) : [];
        infos.forEach((info, index) => this.#update(ids[index], info));
        this.#failures = 0;
      } catch (error) {
        if (signal.aborted) continue;
        // Callers with a timeout go on waiting until then.
        const fails = ({ timeout }) => timeout === undefined || !isTemporary(error);
        for (const id of ids) this.#settle(id, ({ reject }) => reject(error), fails);
        if (this.#jobs.size) await sleep(backoff((this.#failures += 1)), signal);
      }
    }
    this.#isRunning = false;
    this.#onIdle();
  }

  #update(id, info) {
    const job = this.#jobs.get(id);
    if (!job) return;
    if (UNFINISHED_STATUSES.has(info.status)) {
      job.lastUnfinished = performance.now();
      // Unfinished jobs move to the end, so that the others get their turn.
      this.#jobs.delete(id);
      this.#jobs.set(id, job);
      return;
    }
    // A result stored since the job was last seen unfinished would still be kept, so if there is none, the job had none.
    const isResultKept = performance.now() - job.lastUnfinished < (info.kept ?? 0) * 1000;
    const hadNoResult = isResultKept && info.status === "done" && info.result === undefined && info.size === undefined;
    this.#settle(id, ({ resolve }) => resolve(hadNoResult ? { ...info, result: null } : info));
  }
}

/** Returns the result of a job that has ended; throws an error with the job if there is none. */
function unwrapResult(job) {
  if (job.status === "done" && job.result !== undefined) return job.result;
  const codes = { done: job.size ? "ResultTooLarge" : "ResultUnknown", failed: "JobFailed" };
  const code = codes[job.status] ?? (/^(expired|removed|superseded)$/.test(job.status) ? "JobGone" : "ResultUnknown");
  const reason = job.status === "failed" ? `: ${job.error}: ${job.text}` : "";
  const error = new QueueyError(`job ${toMessageId(job)} is ${job.status}${reason}`, { code, outcome: "none" });
  throw Object.assign(error, { job });
}

/** Half of a surrogate pair. UTF-8 cannot encode it, and encoders replace it. */
const LONE_SURROGATE = /\p{Surrogate}/u;
const SEGMENT = /^(?!\.{0,2}$)[^/]+$/;
const MESSAGE_ID = /^(?:[1-9]\d{0,8}:)?[\da-f]{32}$/i;
const HEADER_VALUE = /^[!-~](?:[ -~]*[!-~])?$/;
const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^`|~-]+$/;
const JSON_CONTENT_TYPE = /^application\/json\s*(?:;|$)/i;
const JSON_TAGS = /^\[object (?:Object|Array|String|Number|Boolean|Null|Undefined)\]$/;

/** Names of the options, or fields, of each method besides `signal`; other methods have no more. */
const OPTIONS = {
  Queuey: ["key", "token", "deadline", "fetch"],
  send: ["ttl", "partition", "key", "delay", "after", "headers", "contentType", "idempotencyKey"],
  jobs: ["wait", "states"],
  result: ["timeout"],
  read: ["since", "limit", "partitions", "order", "wait", "early", "merge"],
  markRead: ["back"],
  unread: ["limit"],
  claim: ["limit", "ttl", "wait", "partitions"],
  release: ["begun"],
  stream: ["since", "limit", "partitions", "early", "lastEventId", "onState", "onGone", "onRead"],
  consume: ["patterns", "session", "revoke", "instance", "grace", "name", "onState"],
};
const QUEUE_FIELDS = [
  ...["partitions", "type", "consistency", "principals", "ttl", "read_delay", "max_deliveries", "backoff", "dead_letter"],
  ...["on_ack", "on_expiry", "kind", "max_claimed", "max_claimed_per_key", "claims", "result_ttl", "description"],
];

/** Throws a TypeError if a method has no option of this name. */
function requireKnown(method, options, names = ["signal", ...(OPTIONS[method] ?? [])]) {
  for (const name of Object.keys(options)) {
    const text = names.length > 1 ? `the options are ${names.join(", ")}` : `the only option is ${names[0]}`;
    requireValid(names.includes(name), `an option of ${method}`, name, text);
  }
}

/** Returns an argument's value if it is valid; otherwise throws a TypeError that shows the value, or `display` instead. */
function requireValid(isValid, name, value, rule, display = undefined) {
  if (isValid) return value;
  const text = display ?? (typeof value === "string" ? JSON.stringify(value) : String(value));
  throw new TypeError(`${name} is ${text.slice(0, 100)}: ${rule}`);
}

const requireWellFormed = (name, value) => requireValid(!LONE_SURROGATE.test(value), name, value, "it has half of a character");

/** Encodes text as one segment of a path, so that it cannot lead to another resource. */
function encodeSegment(name, value) {
  const isValid = typeof value === "string" && SEGMENT.test(value);
  const text = requireValid(isValid, name, value, 'give text that is not empty, "." or "..", without "/"');
  return encodeURIComponent(requireWellFormed(name, text));
}

function queuePath(queue) {
  return `/${encodeSegment("queue", requireValid(!/^_/.test(queue), "queue", queue, 'no name begins with "_"'))}`;
}

/** Splits the options, such as `{ signal }`, from the arguments of a method that takes any number of messages. */
function splitOptions(values, names = ["signal"]) {
  const last = values.at(-1);
  const keys = Object.prototype.toString.call(last) === "[object Object]" ? Object.keys(last) : [];
  const hasOptions = keys.length > 0 && keys.every((name) => names.includes(name));
  return hasOptions ? [values.slice(0, -1).flat(), last] : [values.flat(), {}];
}

/** Returns the id of a message or job, `<partition>:<32 hex digits>`; a string is checked and returned as it is. */
function toMessageId(message) {
  const id = typeof message === "string" ? message : `${message?.partition}:${message?.message_id ?? message?.key}`;
  return requireValid(MESSAGE_ID.test(id), "message", id, "give a message, or its id: [<partition>:]<32 hex digits>");
}

/** Returns an argument's value as text for a header; errors show `display` instead of the value. */
function toHeaderValue(name, value, display) {
  const rule = "a header carries only printable ASCII, and no space at its ends";
  return String(requireValid(HEADER_VALUE.test(value), name, value, rule, display));
}

/** Like JSON.stringify, but throws for values that JSON cannot represent, such as NaN or a Map. */
function toJson(value) {
  const text = JSON.stringify(value, (name, member) => {
    const tag = Object.prototype.toString.call(member);
    const isValid = JSON_TAGS.test(tag) && (tag !== "[object Number]" || Number.isFinite(Number(member)));
    return requireValid(isValid, name || "body", member, "it has no form in JSON", typeof member === "number" ? `${member}` : tag);
  });
  return requireValid(text !== undefined, "body", text, "it has no form in JSON");
}

/** Encodes the body of a message for a request. Returns bytes (or text), the content type, and whether it is JSON. */
async function encodeBody(body, contentType) {
  const validType = contentType === undefined ? undefined : toHeaderValue("contentType", contentType);
  const isBlob = body instanceof Blob;
  const content = isBlob || body instanceof ArrayBuffer ? new Uint8Array(isBlob ? await body.arrayBuffer() : body) : body;
  if (typeof content !== "string" && !ArrayBuffer.isView(content)) {
    // Without a content type, the service stores a JSON value as application/json.
    const type = JSON_CONTENT_TYPE.test(validType) ? undefined : validType;
    return { bytes: new TextEncoder().encode(toJson(body)), type, isJson: true };
  }
  const isText = typeof content === "string";
  const type = validType || (isBlob && body.type) || (isText ? "text/plain" : "application/octet-stream");
  const rule = "it would be a batch of messages; give the value itself, which is stored as JSON";
  requireValid(!JSON_CONTENT_TYPE.test(type), "contentType", type, rule);
  const bytes = isText
    ? requireWellFormed("body", content)
    : new Uint8Array(content.buffer, content.byteOffset, content.byteLength).slice();
  return { bytes, type };
}

/** Returns the parameters of a stream request that are set. */
const streamParameters = ({ since, limit, partitions, early, onRead }) =>
  Object.fromEntries(
    Object.entries({ since, limit, partitions, early: early || undefined, read_marks: onRead ? true : undefined }).filter(
      ([, value]) => value !== undefined,
    ),
  );

/** Returns a sort key for the time of an id, a version 1 UUID without dashes. */
const timeKey = (id) => id.slice(13, 16) + id.slice(8, 12) + id.slice(0, 8);

/** Returns a sort key for the order of ids in queues: by time, then by the last eight bytes as signed numbers. */
const sortKey = (id) => timeKey(id) + (BigInt(`0x${id.slice(16)}`) ^ 0x8080808080808080n).toString(16).padStart(16, "0");

/** Whether a message is read according to marks (`read` of `onRead`, `unread` and `markRead`). */
export function isRead(message, read) {
  const mark = read[message.partition];
  return mark !== undefined && sortKey(message.message_id) <= sortKey(mark);
}

/** Returns the last id of each partition. An id without a partition applies to all of them, and comes first. */
function lastIds(messageIds) {
  const idsByPartition = new Map();
  for (const messageId of messageIds) {
    const [id, partition = ""] = messageId.toLowerCase().split(":").reverse();
    const isLater = !idsByPartition.has(partition) || sortKey(idsByPartition.get(partition)) < sortKey(id);
    if (isLater) idsByPartition.set(partition, id);
  }
  return [...idsByPartition].sort().map(([partition, id]) => (partition ? `${partition}:${id}` : id));
}

/** Remembers messages that were yielded early, so that they are not yielded again at their final position. */
class EarlyMessages {
  #messages = new Map();

  /** Returns whether to yield a message; remembers it if it is early. */
  accept({ queue_name, partition, message_id, early }) {
    const key = `${partition}:${message_id}:${queue_name}`;
    if (!early) return !this.#messages.delete(key);
    if (this.#messages.has(key)) return false;
    if (this.#messages.size >= MAX_EARLY_MESSAGES) this.#messages.delete(this.#messages.keys().next().value);
    this.#messages.set(key, { queue_name, partition, message_id });
    return true;
  }

  /** Returns the number of messages of a queue that are above the marks and have not come at their final position. */
  countUnread({ queue_name, read }) {
    return [...this.#messages.values()].filter((each) => each.queue_name === queue_name && !isRead(each, read)).length;
  }

  /** Forgets messages below a cursor: they have vanished, or they would have come again before it. */
  forgetBelow(cursor) {
    if (!cursor) return;
    for (const [key, { message_id }] of this.#messages) {
      if (timeKey(message_id) >= timeKey(cursor)) return;
      this.#messages.delete(key);
    }
  }
}

/** Decodes a base64 body to bytes. */
function decodeMessage(message) {
  if (message.encoding !== "base64") return message;
  const { encoding, ...rest } = message;
  return { ...rest, body: Uint8Array.from(atob(message.body), (character) => character.charCodeAt(0)) };
}

/** Returns the error for a response (its status and JSON body) or for an event or page with the same fields. */
function toError(status, body, retryAfter = 0) {
  const problem = body ?? {};
  const errors = problem.errors ?? problem.error_msg ?? {};
  const code = problem.code ?? Object.keys(errors)[0] ?? "Error";
  const text = problem.detail ?? Object.entries(errors).map(([name, value]) => `${name}: ${value}`).join("; ");
  return new QueueyError(text || `status ${status}`, { status, code, errors, outcome: problem.outcome, retryAfter });
}

/** Returns the seconds of the header Retry-After, which may be a date; 0 without a valid one. */
function readRetryAfter(headers) {
  const text = headers.get("Retry-After") ?? "";
  // The service's own clock, if the page may see it.
  const now = Date.parse(headers.get("Date") ?? "") || Date.now();
  return Number(text) || Math.max(0, (Date.parse(text) - now) / 1000) || 0;
}

/** Milliseconds to wait according to an error's Retry-After, up to the maximum. */
const retryAfterMilliseconds = (error) => Math.min((error?.retryAfter ?? 0) * 1000, MAX_RETRY_AFTER_MILLISECONDS);

/** Random milliseconds to pause: up to the exponential backoff. */
const backoff = (failures) =>
  BACKOFF_BASE_MILLISECONDS / 2 + Math.random() * Math.min(BACKOFF_CAP_MILLISECONDS, BACKOFF_BASE_MILLISECONDS * 2 ** failures);

/** Calls `work` with a signal that is aborted after some milliseconds, or with another signal. */
async function limitTime(milliseconds, signal, work) {
  const controller = new AbortController();
  const causes = [AbortSignal.timeout(Math.ceil(Math.max(0, Math.min(milliseconds, MAX_TIMER_MILLISECONDS)))), signal];
  const abort = () => controller.abort(causes.find((cause) => cause?.aborted)?.reason);
  for (const cause of causes) cause?.addEventListener("abort", abort);
  if (signal?.aborted) abort();
  try {
    return await work(controller.signal);
  } finally {
    for (const cause of causes) cause?.removeEventListener("abort", abort);
  }
}

/** Resolves to true after the pause, or at once to false if it is aborted. */
function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve(false);
    const onAbort = () => {
      clearTimeout(timer);
      resolve(false);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve(true);
    }, Math.min(milliseconds, MAX_TIMER_MILLISECONDS));
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Yields the server-sent events of a response's body (WHATWG HTML, 9.2); keeps `position` up to date for reconnecting. */
async function* parseEvents(body, position) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event = { type: "", data: [], id: undefined };
  try {
    for (;;) {
      const { done, value } = await withSilenceTimeout(readChunk(reader));
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line) {
          parseLine(line, event, position);
          continue;
        }
        const { type, data, id } = event;
        event = { type: "", data: [], id: undefined };
        if (type !== "bye" && (data.length || id !== undefined)) position.hasEvents = true;
        if (data.length) yield { type: type || "message", data: data.join("\n"), id };
        // After the yield: an event that the caller did not finish with comes again.
        if (id !== undefined) position.lastEventId = id;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parseLine(line, event, position) {
  const colon = line.indexOf(":");
  const field = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (field === "data") event.data.push(value);
  else if (field === "event") event.type = value;
  else if (field === "id") event.id = value;
  else if (field === "retry" && /^\d+$/.test(value)) position.retryMilliseconds = Number(value);
}

async function readChunk(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error instanceof QueueyError ? error : new QueueyError("the stream has broken off", {}, error);
  }
}

/** Waits for an answer or a chunk of it; rejects if nothing comes in time, because a lost connection may go unnoticed. */
async function withSilenceTimeout(promise) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new QueueyError("nothing came for a minute")), SILENCE_TIMEOUT_MILLISECONDS);
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
  }
}
