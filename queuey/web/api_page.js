// Forms that send the requests of the page, on this machine alone: docs/decisions/0047-requests-from-the-api-page.md.

/** Max characters of an answer that are shown. */
const MAX_SHOWN = 65_536;
/** Max levels by which an answer is indented. */
const MAX_LEVELS = 20;

const link = document.querySelector(".api-document");
const root = new URL("..", link.href);
const last = new Map();

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const input = (properties) => make("input", { autocomplete: "off", spellcheck: false, ...properties });
const labelled = (text, control) => make("label", {}, make("span", {}, text), control);

const application = input({ value: "queuey", size: 10 });
const key = input({ type: "password", size: 20 });
addEventListener("pagehide", () => (key.value = ""));

let operations;
/** The operations of the document by their names, fetched once. */
const known = () =>
  (operations ??= fetch(link.href).then(async (answer) => {
    const paths = Object.entries((await answer.json()).paths);
    const found = paths.flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => [operation.operationId, { ...operation, method, path }]),
    );
    return new Map(found);
  }));

/** JSON on several lines. Its values are not parsed, because a large number would change. */
const indented = (text) => {
  let depth = 0;
  let found = "";
  const line = () => `\n${"  ".repeat(Math.min(depth, MAX_LEVELS))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    const isEnd = token === "}" || token === "]";
    if (isEnd) depth = Math.max(depth - 1, 0);
    if (isEnd ? !/[{[]$/.test(found) : /[{[,]$/.test(found)) found += line();
    if ("{[".includes(token)) depth += 1;
    found += token === ":" ? ": " : token;
  }
  return found;
};

/** The fields of a form: a parameter and its input each. The application has its field above. */
const inputsOf = ({ method, parameters }) =>
  parameters
    .filter(({ name }) => name !== "app")
    .map((parameter) => {
      const required = parameter.in === "path";
      // Nobody deletes the queue of an example by accident.
      const value = method === "delete" ? "" : (parameter.example ?? "");
      return { ...parameter, input: input({ required, value, placeholder: required ? "" : parameter.in }) };
    });

const bodyOf = ({ requestBody }) => {
  const content = Object.entries(requestBody?.content ?? {});
  if (content.length === 0) return null;
  const [shown, { example = "" }] = content.find(([, { example }]) => example !== undefined) ?? content[0];
  const text = typeof example === "string" ? example : JSON.stringify(example, null, 1);
  const name = (type) => (type === "*/*" ? "text/plain" : type);
  const options = content.map(([type]) => make("option", { selected: type === shown }, name(type)));
  return { text: make("textarea", { rows: 6, spellcheck: false, value: text }), type: make("select", {}, ...options) };
};

const addressOf = (operation, inputs) => {
  const values = new Map(inputs.map(({ name, input }) => [name, input.value]));
  const value = (_, name) => encodeURIComponent(name === "app" ? application.value : values.get(name));
  const path = operation.path.slice(1).replace(/\{(\w+)\}/g, value);
  const url = new URL(path, root);
  if (url.pathname !== root.pathname + path) throw new Error("no name is empty, '.' or '..'");
  for (const { name, input, in: place } of inputs) {
    if (place === "path" && operation.method !== "delete") last.set(name, input.value);
    if (place === "query" && input.value !== "") url.searchParams.set(name, input.value);
  }
  return url;
};

const headersOf = (inputs, body) => {
  const given = inputs.filter((each) => each.in === "header" && each.input.value !== "");
  const headers = new Headers(given.map(({ name, input }) => [name, input.value]));
  if (key.value !== "") headers.set("Authorization", `Application ${key.value.trim()}`);
  if (body?.text.value) headers.set("Content-Type", body.type.value);
  return headers;
};

/** Shows an answer while it arrives; a stream goes on until it is stopped, or as long as it may get. */
const show = async (answer, output, signal) => {
  const headers = [...answer.headers].map(([name, value]) => `${name}: ${value}\n`).join("");
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part; text.length <= MAX_SHOWN && !signal.aborted && !(part = await reader?.read())?.done && part; ) {
    text += part.value;
    output.textContent = `${headers}\n${text.slice(0, MAX_SHOWN)}`;
  }
  if (text.length > MAX_SHOWN) {
    await reader.cancel();
    return `, the first ${MAX_SHOWN.toLocaleString("en")} characters`;
  }
  const isJson = /json/.test(answer.headers.get("Content-Type"));
  output.textContent = `${headers}\n${isJson ? indented(text) : text}`;
  return "";
};

const formOf = (operation) => {
  const inputs = inputsOf(operation);
  const body = bodyOf(operation);
  const status = make("p", { role: "status" });
  const output = make("pre", { hidden: true, tabIndex: 0, role: "region", ariaLabel: "Answer" });
  const send = make("button", {}, "Send");
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const fields = inputs.map(({ name, input }) => labelled(name, input));
  if (body) fields.push(labelled("Content-Type", body.type), labelled("Body", body.text));
  const form = make("form", {}, ...fields, make("p", {}, send, " ", stop), status, output);
  let running;
  stop.addEventListener("click", () => {
    running.abort();
    send.focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const { signal } = (running = new AbortController());
    output.textContent = "";
    output.hidden = stop.hidden = false;
    let said;
    try {
      const url = addressOf(operation, inputs);
      const method = operation.method.toUpperCase();
      status.textContent = `${method} ${url.pathname}${url.search} …`;
      const answer = await fetch(url, {
        method,
        headers: headersOf(inputs, body),
        body: body?.text.value || undefined,
        signal,
        mode: "same-origin",
        credentials: "omit",
        redirect: "error",
        cache: "no-store",
      });
      status.textContent = said = `${answer.status} ${answer.statusText}`;
      said += await show(answer, output, signal);
    } catch (error) {
      said = signal.aborted ? `${said ?? "No answer"}, stopped` : `Not sent, or no answer: ${error.message}`;
    }
    if (running.signal !== signal) return;
    status.textContent = said;
    stop.hidden = true;
  });
  return { form, inputs };
};

const offer = (section) => {
  const details = make("details", { className: "api-try" }, make("summary", {}, "Try it"));
  let made;
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const operation = (await known()).get(section.id);
      made ??= formOf(operation);
      details.append(made.form);
      const kept = made.inputs.filter(({ name }) => operation.method !== "delete" && last.has(name));
      for (const { name, input } of kept) input.value = last.get(name);
    } catch (error) {
      operations = undefined;
      details.append(make("p", { role: "alert" }, `No forms: ${error.message}`));
    }
  });
  section.querySelector(".api-pair").after(details);
};

// A proxy may give the service another host than the browser's.
if (/^(localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(location.hostname)) {
  const about = make("small", {}, "The key stays in this field. It is gone when you reload or leave the page.");
  const fields = [labelled("Application", application), labelled("Key", key), about];
  document.querySelector(".api-bar").append(make("div", { className: "api-key" }, ...fields));
  for (const section of document.querySelectorAll(".api-operation > section")) offer(section);
}
