// Every argument is refused before anything is sent, or reaches exactly the resource that it names. The arguments come
// from the declared types, so new ones are tested as well. See test_node.py.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

const { CLIENT: client } = process.env;
const { Queuey, QueueyError } = await import(client);
const types = await readFile(new URL(client.replace(/\.js$/, ".d.ts")), "utf8");

const ID = "51783387e91e11f18080808080808080";
const TEXTS = ["", ".", "..", "/", "?", "#", "%", "%2F", "%2e%2e", "../payroll", "messages", "_me", "a b", " a", "a_b", "ü", "ключ", "\n", "\r\nX-A: b", "\0", "\ud800", "\\", "1:", `${ID},${ID}`, `${ID}/..`, `../${ID}`];
/** Arguments that are not free texts. */
const USUAL = { messages: ID, seen: ID, after: ID, job: ID, jobs: ID, message: ID };

const fieldsOf = (name) => {
  const found = types.match(new RegExp(`export interface ${name}(?: extends (\\w+))? \\{\n([^}]*(?:\\{[^}]*\\}[^}]*)*?)\n\\}`));
  const own = [...found[2].matchAll(/^ {2}(\w+)\??: (.*);$/gm)].map(([, field, type]) => ({ name: field, type }));
  return [...own, ...(found[1] ? fieldsOf(found[1]) : [])];
};

/** The arguments of a method: their names, and the fields of those that are options. */
function argumentsOf(signature) {
  return signature.split(/, (?=(?:\.\.\.)?\w+\??: )/).filter(Boolean).map((each) => {
    const [, name, type] = each.match(/^(?:\.\.\.)?(\w+)\??: (.*)$/);
    return { name, fields: /^(?:\w*Options|QueueFields)$/.test(type) ? fieldsOf(type) : undefined };
  });
}

/** Every position of a text in the calls of a method: the call with a text in that position. */
function* placesOf(method, signature) {
  const all = argumentsOf(signature);
  const usual = all.map(({ name, fields }) => (fields ? {} : USUAL[name] ?? "usual"));
  for (const [index, { name, fields }] of all.entries()) {
    const call = (value) => (queuey) => queuey[method](...Object.assign([...usual], { [index]: value }));
    if (!fields) yield { name, call };
    for (const { name: field, type } of fields ?? []) {
      if (["signal", "timeout"].includes(field) || type === "boolean" || type.includes("=>")) continue;
      if (!type.startsWith("Record")) yield { name: field, call: (text) => call({ [field]: text }) };
      else {
        yield { name: `${field}.name`, call: (text) => call({ [field]: { [text]: "usual" } }) };
        yield { name: `${field}.value`, call: (text) => call({ [field]: { usual: text } }) };
      }
    }
  }
}

/** What a call sends, as a server reads it. */
async function sent(call) {
  const requests = [];
  const fetch = async (url, options) => {
    const request = new Request(url, options);
    const headers = [...request.headers].filter(([name, value]) => !(name === "idempotency-key" && /-.*-.*-/.test(value)));
    const text = await request.text();
    const body = request.headers.get("content-type") === "application/json" ? JSON.parse(text) : text;
    const { pathname, searchParams } = new URL(request.url);
    requests.push({ method: request.method, path: pathname.split("/").map(decodeURIComponent), query: [...searchParams], headers, body });
    if (headers.some(([, value]) => value === "text/event-stream")) return new Response('event: bye\ndata: {"status": 400}\n\n');
    if (pathname.endsWith("/members")) return new Response("", { status: 400 });
    return Response.json({ messages: [], rights: [], queues: [], names: [], read: {}, pending: 0, jobs: [{ status: "done", result: 0 }] });
  };
  const queuey = new Queuey("http://127.0.0.1:9", "shop", { key: "key", fetch });
  try {
    const result = await call(queuey);
    if (result?.next) await result.next();
  } catch (error) {
    if (!(error instanceof QueueyError && error.status === 400)) return { requests, error };
  }
  return { requests };
}

const replaced = (value, from, to) =>
  JSON.parse(JSON.stringify(value).replaceAll(JSON.stringify(from).slice(1, -1), () => JSON.stringify(to).slice(1, -1)));

const signatures = [...types.split("export declare class Queuey {")[1].matchAll(/^ {2}(\w+)\((.*)\)(?:: (?:Promise|AsyncG).*)?;$/gm)];

for (const [, method, signature] of signatures.filter(([, name]) => name !== "constructor")) {
  for (const { name, call } of placesOf(method, signature)) {
    test(`${method}: ${name}`, async () => {
      const marker = USUAL[name] ?? "m4rker";
      const usual = await sent(call(marker));
      assert.equal(usual.error, undefined);
      assert.ok(JSON.stringify(usual.requests).includes(marker), "it is sent");
      for (const text of TEXTS) {
        const { requests, error } = await sent(call(text));
        if (error) {
          assert.ok(error instanceof TypeError && error.message.includes(" is "), `${JSON.stringify(text)}: ${error}`);
          assert.deepEqual(requests, [], JSON.stringify(text));
        } else if (text) {
          const wanted = replaced(usual.requests, marker, text);
          if (name.startsWith("headers")) wanted[0].headers = wanted[0].headers.map(([each, value]) => [each.toLowerCase(), value]).sort();
          assert.deepEqual(requests, wanted, JSON.stringify(text));
        }
      }
    });
  }
}

for (const [, method, signature] of signatures) {
  const all = argumentsOf(signature);
  for (const [index, { name, fields }] of all.entries()) {
    if (!fields) continue;
    test(`${method}: no other ${name}`, async () => {
      const usual = all.map((each) => (each.fields ? {} : USUAL[each.name] ?? "usual"));
      const values = Object.assign(usual, { [index]: { [`${fields[0].name}s`]: 1 } });
      const make = (queuey) => (method === "constructor" ? new Queuey("http://127.0.0.1:9", "shop", values[index]) : queuey[method](...values));
      const { requests, error } = await sent(make);
      assert.ok(error instanceof TypeError, String(error));
      for (const field of fields) assert.ok(error.message.includes(field.name), `${error.message} names ${field.name}`);
      assert.deepEqual(requests, []);
    });
  }
}

test("all methods are tested", () => {
  assert.deepEqual(signatures.map(([, name]) => name).sort(), Object.getOwnPropertyNames(Queuey.prototype).sort());
});

test("neither blank ids nor paths in them reach another resource", async () => {
  for (const id of ["", "?", "#", "messages", "../payroll", `${ID}/..`, `0:${ID}`, `:${ID}`, undefined, null, {}, 7, { message_id: "..", partition: 1 }]) {
    const { requests, error } = await sent((queuey) => queuey.delete("inbox-ann", id));
    assert.ok(error instanceof TypeError && requests.length === 0, String(id));
  }
  const { requests } = await sent((queuey) => queuey.delete("inbox-ann", ID.toUpperCase(), { partition: 2, message_id: ID }));
  assert.deepEqual(requests[0].path, ["", "v1", "shop", "inbox-ann", `${ID.toUpperCase()},2:${ID}`]);
});

test("addresses, applications and credentials", async () => {
  for (const text of TEXTS) {
    for (const [url, application, options] of [[`http://127.0.0.1:9${text}`, "shop"], ["http://127.0.0.1:9", text], ["http://127.0.0.1:9", "shop", { key: text }], ["http://127.0.0.1:9", "shop", { token: () => text }]]) {
      const asked = [];
      const fetch = async (...given) => {
        asked.push(new Request(...given));
        return Response.json({ rights: [] });
      };
      let error;
      try {
        await new Queuey(url, application, { ...options, fetch }).me();
      } catch (caught) {
        error = caught;
      }
      const hint = JSON.stringify([url, application, options]);
      if (error) {
        assert.ok(error instanceof TypeError && asked.length === 0, `${hint}: ${error}`);
        if (options) assert.ok(!error.message.includes("payroll"), "secrets are not shown");
        continue;
      }
      const { host, pathname } = new URL(asked[0].url);
      assert.equal(host, "127.0.0.1:9", hint);
      assert.deepEqual(pathname.split("/").slice(-3).map(decodeURIComponent), ["v1", application, "_me"], hint);
      if (options?.key) assert.equal(asked[0].headers.get("Authorization"), `Application ${text}`);
    }
  }
  for (const url of ["ftp://h", "h", "http://a:b@h", "http://h/?a", "http://h#a", "", undefined]) assert.throws(() => new Queuey(url, "shop"), TypeError, url);
});

test("bodies of unknown types are refused", async () => {
  const cyclic = {};
  cyclic.self = cyclic;
  for (const body of [undefined, NaN, [Infinity], new Map([[1, 2]]), new Set([1]), { a: new Map() }, /a/, new Error("a"), Promise.resolve(), () => 1, Symbol("a"), 1n, cyclic, new URLSearchParams("a=b"), new SharedArrayBuffer(1)]) {
    const { requests, error } = await sent((queuey) => queuey.send("q", body));
    assert.ok(error instanceof TypeError && requests.length === 0, typeof body);
  }
  for (const contentType of ["application/json", "Application/JSON; charset=utf-8"]) {
    const { error } = await sent((queuey) => queuey.send("q", '{"messages": []}', { contentType }));
    assert.match(error.message, /contentType is "application/i);
  }
});
