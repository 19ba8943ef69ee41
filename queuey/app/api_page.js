// Forms that send the requests on this page, on localhost only: docs/decisions/0047-requests-from-the-api-page.md.

/** Max characters of a response that are shown. */
const MAX_SHOWN_CHARACTERS = 65_536;
/** Max levels of indentation; JSON that is nested deeper stays at this one. */
const MAX_INDENT_LEVELS = 20;

const documentLink = document.querySelector(".api-document");
const rootUrl = new URL("..", documentLink.href);
/** The last value sent for each path parameter, to prefill other forms. */
const lastPathValues = new Map();

const createElement = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const createInput = (properties) => createElement("input", { autocomplete: "off", spellcheck: false, ...properties });
const createLabel = (text, control) => createElement("label", {}, createElement("span", {}, text), control);

const applicationInput = createInput({ value: "queuey", size: 10 });
const keyInput = createInput({ type: "password", size: 20 });
addEventListener("pagehide", () => (keyInput.value = ""));

let operationsPromise;
/** Returns a promise of the operations in the OpenAPI document, by operation id. The document is fetched once. */
const loadOperations = () =>
  (operationsPromise ??= fetch(documentLink.href).then(async (response) => {
    const paths = Object.entries((await response.json()).paths);
    const entries = paths.flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => [operation.operationId, { ...operation, method, path }]),
    );
    return new Map(entries);
  }));

/** Indents JSON without parsing its values: JSON.parse would round large numbers. */
const indentJson = (text) => {
  let depth = 0;
  let json = "";
  const newLine = () => `\n${"  ".repeat(Math.min(depth, MAX_INDENT_LEVELS))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    const isEnd = token === "}" || token === "]";
    if (isEnd) depth = Math.max(depth - 1, 0);
    if (isEnd ? !/[{[]$/.test(json) : /[{[,]$/.test(json)) json += newLine();
    if ("{[".includes(token)) depth += 1;
    json += token === ":" ? ": " : token;
  }
  return json;
};

/** Returns the parameters of an operation, each with its input, except the application, which has an input for all forms. */
const createParameters = ({ method, parameters }) =>
  parameters
    .filter(({ name }) => name !== "app")
    .map((parameter) => {
      const required = parameter.in === "path";
      // A DELETE form starts without the examples, so that nobody deletes an example's queue by accident.
      const value = method === "delete" ? "" : (parameter.example ?? "");
      return { ...parameter, input: createInput({ required, value, placeholder: required ? "" : parameter.in }) };
    });

const createBodyFields = ({ requestBody }) => {
  const content = Object.entries(requestBody?.content ?? {});
  if (content.length === 0) return null;
  const [selectedType, { example = "" }] = content.find(([, { example }]) => example !== undefined) ?? content[0];
  const text = typeof example === "string" ? example : JSON.stringify(example, null, 1);
  const typeName = (type) => (type === "*/*" ? "text/plain" : type);
  const options = content.map(([type]) => createElement("option", { selected: type === selectedType }, typeName(type)));
  return {
    text: createElement("textarea", { rows: 6, spellcheck: false, value: text }),
    type: createElement("select", {}, ...options),
  };
};

const buildUrl = (operation, parameters) => {
  const values = new Map(parameters.map(({ name, input }) => [name, input.value]));
  const encodeValue = (_, name) => encodeURIComponent(name === "app" ? applicationInput.value : values.get(name));
  const path = operation.path.slice(1).replace(/\{(\w+)\}/g, encodeValue);
  const url = new URL(path, rootUrl);
  if (url.pathname !== rootUrl.pathname + path) throw new Error("no name is empty, '.' or '..'");
  for (const { name, input, in: location } of parameters) {
    if (location === "path" && operation.method !== "delete") lastPathValues.set(name, input.value);
    if (location === "query" && input.value !== "") url.searchParams.set(name, input.value);
  }
  return url;
};

const buildHeaders = (parameters, body) => {
  const headerParameters = parameters.filter((parameter) => parameter.in === "header" && parameter.input.value !== "");
  const headers = new Headers(headerParameters.map(({ name, input }) => [name, input.value]));
  if (keyInput.value !== "") headers.set("Authorization", `Application ${keyInput.value.trim()}`);
  if (body?.text.value) headers.set("Content-Type", body.type.value);
  return headers;
};

/** Shows a response as it arrives, until it ends, is stopped or is too long; returns a note for the status line. */
const showResponse = async (response, output, signal) => {
  const headers = [...response.headers].map(([name, value]) => `${name}: ${value}\n`).join("");
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let chunk; text.length <= MAX_SHOWN_CHARACTERS && !signal.aborted && !(chunk = await reader?.read())?.done && chunk; ) {
    text += chunk.value;
    output.textContent = `${headers}\n${text.slice(0, MAX_SHOWN_CHARACTERS)}`;
  }
  if (text.length > MAX_SHOWN_CHARACTERS) {
    await reader.cancel();
    return `, the first ${MAX_SHOWN_CHARACTERS.toLocaleString("en")} characters`;
  }
  const isJson = /json/.test(response.headers.get("Content-Type"));
  output.textContent = `${headers}\n${isJson ? indentJson(text) : text}`;
  return "";
};

const createForm = (operation) => {
  const parameters = createParameters(operation);
  const body = createBodyFields(operation);
  const status = createElement("p", { role: "status" });
  const output = createElement("pre", { hidden: true, tabIndex: 0, role: "region", ariaLabel: "Answer" });
  const sendButton = createElement("button", {}, "Send");
  const stopButton = createElement("button", { type: "button", hidden: true }, "Stop");
  const fields = parameters.map(({ name, input }) => createLabel(name, input));
  if (body) fields.push(createLabel("Content-Type", body.type), createLabel("Body", body.text));
  const form = createElement("form", {}, ...fields, createElement("p", {}, sendButton, " ", stopButton), status, output);
  let controller;
  stopButton.addEventListener("click", () => {
    controller.abort();
    sendButton.focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    controller?.abort();
    const { signal } = (controller = new AbortController());
    output.textContent = "";
    output.hidden = stopButton.hidden = false;
    let summary;
    try {
      const url = buildUrl(operation, parameters);
      const method = operation.method.toUpperCase();
      status.textContent = `${method} ${url.pathname}${url.search} …`;
      const response = await fetch(url, {
        method,
        headers: buildHeaders(parameters, body),
        body: body?.text.value || undefined,
        signal,
        mode: "same-origin",
        credentials: "omit",
        redirect: "error",
        cache: "no-store",
      });
      status.textContent = summary = `${response.status} ${response.statusText}`;
      summary += await showResponse(response, output, signal);
    } catch (error) {
      summary = signal.aborted ? `${summary ?? "No answer"}, stopped` : `Not sent, or no answer: ${error.message}`;
    }
    if (controller.signal !== signal) return;
    status.textContent = summary;
    stopButton.hidden = true;
  });
  return { form, parameters };
};

/** Adds "Try it" to the section of an operation; its form is created when it is first opened. */
const addTryIt = (section) => {
  const details = createElement("details", { className: "api-try" }, createElement("summary", {}, "Try it"));
  let created;
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const operation = (await loadOperations()).get(section.id);
      created ??= createForm(operation);
      details.append(created.form);
      const prefilled = created.parameters.filter(({ name }) => operation.method !== "delete" && lastPathValues.has(name));
      for (const { name, input } of prefilled) input.value = lastPathValues.get(name);
    } catch (error) {
      operationsPromise = undefined;
      details.append(createElement("p", { role: "alert" }, `No forms: ${error.message}`));
    }
  });
  section.querySelector(".api-pair").after(details);
};

// Behind a proxy, the service may see a local host where the browser does not.
if (/^(localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(location.hostname)) {
  const note = createElement("small", {}, "The key stays in this field. It is gone when you reload or leave the page.");
  const fields = [createLabel("Application", applicationInput), createLabel("Key", keyInput), note];
  document.querySelector(".api-bar").append(createElement("div", { className: "api-key" }, ...fields));
  for (const section of document.querySelectorAll(".api-operation > section")) addTryIt(section);
}
