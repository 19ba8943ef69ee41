// A clock that a test advances, in place of the clocks and timers of the client.
const { setImmediate: soon } = globalThis;
const START = Date.now();

let now = 0;
let timers = [];

performance.now = () => now;
Date.now = () => START + now;
globalThis.setTimeout = (call, milliseconds = 0) => {
  const timer = { at: now + milliseconds, call };
  timers.push(timer);
  return timer;
};
globalThis.clearTimeout = (timer) => {
  timers = timers.filter((each) => each !== timer);
};
AbortSignal.timeout = (milliseconds) => {
  const controller = new AbortController();
  setTimeout(() => controller.abort(new DOMException("the time is over", "TimeoutError")), milliseconds);
  return controller.signal;
};

/** Seconds since the begin of the test. */
export const seconds = () => now / 1000;

export const sleep = (length) => new Promise((resolve) => setTimeout(resolve, length * 1000));

export function reset() {
  now = 0;
  timers = [];
}

/** Returns the result of a promise, or throws its error. Meanwhile time passes as soon as nothing else happens. */
export async function elapse(promise, limit = 600) {
  let isSettled = false;
  const settle = () => (isSettled = true);
  promise.then(settle, settle);
  while (!isSettled) {
    for (let turn = 0; turn < 20 && !isSettled; turn += 1) await new Promise((resolve) => soon(resolve));
    if (isSettled) break;
    const next = timers.reduce((first, each) => (first && first.at <= each.at ? first : each), undefined);
    if (!next || next.at > limit * 1000) throw new Error(`nothing more happens in ${limit} s`);
    clearTimeout(next);
    now = Math.max(now, next.at);
    next.call();
  }
  return promise;
}
