// Sends questions and shows the events of their runs. The server has escaped all text in them.
"use strict";

const at = (id) => document.getElementById(id);
const copyOf = (template) => at(template).content.firstElementChild.cloneNode(true);
const exchanges = []; // the conversation: for each question its runs, one for each technique

// One question to one technique: its answer and its steps.
class Run {
  constructor(host) {
    this.root = copyOf("run");
    this.name = null; // the server's, once it has begun
    this.graph = null;
    this.answered = false;
    this.began = new Map(); // the running steps: the time of the first event, and the node
    this.aborter = new AbortController();
    this.find(".stop").addEventListener("click", () => this.aborter.abort());
    host.append(this.root);
  }

  find(selector) { return this.root.querySelector(selector); }
  say(words) { this.find(".status").textContent = words; }

  fail(sentence) {
    const banner = document.createElement("p");
    banner.className = "banner fault";
    banner.setAttribute("role", "alert");
    banner.textContent = sentence;
    this.find(".result").replaceChildren(banner);
  }

  linkToTrace() {
    const line = document.createElement("p"), link = document.createElement("a");
    line.className = "links";
    link.href = `runs/${this.name}`;
    link.target = "_blank";
    link.textContent = "Open the trace up to here";
    line.append(link);
    this.find(".result").replaceChildren(line);
  }

  card(number) { return this.find(`[data-step="${number}"]`); }

  place(step) {
    const shown = this.card(step.number);
    if (shown) return shown;
    const parent = step.within ? this.card(step.within).lastElementChild : this.find(".steps");
    let round = parent.querySelector(`:scope > [data-round="${step.round}"]`);
    if (!round) {
      round = document.createElement("div");
      round.className = "round";
      round.dataset.round = step.round;
      parent.append(round);
    }
    const card = document.createElement("article");
    card.dataset.step = step.number;
    card.append(document.createElement("div"), document.createElement("div"));
    round.append(card);
    return card;
  }

  show(step) {
    const card = this.place(step);
    card.className = `card ${step.state}`;
    card.firstElementChild.innerHTML = step.html;
    if (step.state !== "running") this.began.delete(step.number);
    else if (!this.began.has(step.number)) this.began.set(step.number, { at: performance.now(), node: step.node });
    this.tick();
  }

  tick() {
    for (const [number, step] of this.began) {
      const clock = this.card(number).querySelector(":scope > :first-child .clock");
      if (clock) clock.textContent = `${((performance.now() - step.at) / 1000).toFixed(0)} s`;
    }
  }

  handle(kind, data) {
    if (kind === "begun") {
      this.name = data.name;
      this.find(".technique").textContent = data.technique;
      this.root.closest(".exchange").querySelector(".asked").textContent = data.question;
      remember();
    } else if (kind === "step") {
      this.show(data);
      const names = [...new Set([...this.began.values()].map((step) => step.node))];
      if (names.length) this.say(`Running: ${names.join(", ")}`);
    } else if (kind === "answer") {
      this.find(".result").innerHTML = data.html;
    } else if (kind === "done" || kind === "fault") {
      this.find(".result").innerHTML = data.html;
      this.say(kind === "done" ? "Done." : "");
      this.answered = kind === "done";
    } else if (kind === "stopped") this.stopped();
    return ["done", "fault", "stopped"].includes(kind);
  }

  stopped() {
    this.say("Stopped.");
    if (this.name) this.linkToTrace();
  }

  async read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", ended = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [, kind, data] = event.match(/^event: (.*)\ndata: (.*)$/);
        ended = this.handle(kind, JSON.parse(data)) || ended;
      }
    }
    if (!ended) throw new TypeError("the connection was lost");
  }

  async follow(path, options = {}) {
    this.find(".stop").hidden = false;
    this.say("Sent.");
    try {
      const answer = await fetch(path, { ...options, signal: this.aborter.signal });
      if (answer.ok) await this.read(answer.body);
      else {
        this.say("");
        this.fail((await answer.json()).error);
      }
    } catch (fault) {
      if (fault.name === "AbortError") this.stopped();
      else {
        this.say("");
        this.fail("The connection to dubito was lost: is it still running?");
      }
    } finally {
      for (const number of this.began.keys()) this.card(number).classList.replace("running", "stopped");
      this.began.clear();
      this.find(".stop").hidden = true;
    }
  }

  ask(body) {
    this.graph = body.graph;
    return this.follow("ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  }
}

const inputs = () => [...at("settings").querySelectorAll("[name]")];
const valueOf = (input) => (input.type === "checkbox" ? String(input.checked) : input.value);
const settings = () => Object.fromEntries(inputs().map((input) => [input.name, valueOf(input)]));

async function chooseGraph() {
  const before = settings();
  const answer = await fetch(`form/${encodeURIComponent(at("graph").value)}`).catch(() => null);
  if (!answer?.ok) {
    newExchange("", 1)[0].fail("dubito does not answer: is it still running?");
    return;
  }
  at("settings").innerHTML = await answer.text();
  offerFiles();
  for (const input of inputs()) { // the corpus and the model stay chosen
    if (["corpus", "llm"].includes(input.name) && before[input.name]) input.value = before[input.name];
  }
  chooseCorpus();
}

function chooseCorpus() {
  at("examples").hidden = at("set-corpus")?.value !== "sample" || !at("examples").querySelector(".example");
}

function newExchange(question, techniques) {
  const exchange = copyOf("exchange");
  exchange.querySelector(".asked").textContent = question;
  at("exchanges").append(exchange);
  const runs = Array.from({ length: techniques }, () => new Run(exchange.querySelector(".runs")));
  exchanges.push(runs);
  return runs;
}

function clear() {
  exchanges.length = 0;
  at("exchanges").replaceChildren();
}

// The address names what is shown, so that a reload shows it again.
function remember() {
  const names = exchanges.map((runs) => runs.map((run) => run.name ?? "").join(",")).join(";");
  history.replaceState(null, "", `#${names}`);
}

async function busy(work) {
  at("go").disabled = true;
  at("history").inert = true;
  await work();
  at("go").disabled = false;
  at("history").inert = false;
  at("follow-field").hidden = !exchanges.at(-1)?.some((run) => run.answered);
  if (at("follow-field").hidden) at("follow").checked = false;
  await showHistory();
}

function bodies() {
  const own = settings(), beside = at("beside").selectedOptions[0];
  const first = { graph: at("graph").value, settings: own, answers: at("answers")?.value.split("\n") ?? [] };
  if (!beside.value) return [first];
  const shared = beside.dataset.shared.split(" ").filter((name) => name in own);
  return [first, { ...first, graph: beside.value, settings: Object.fromEntries(shared.map((name) => [name, own[name]])) }];
}

async function ask(event) {
  event.preventDefault();
  if (at("go").disabled) return;
  const question = at("question").value, asked = bodies();
  if (!at("follow").checked) clear();
  const before = exchanges.filter((runs) => runs.some((run) => run.answered)).slice(-at("exchanges").dataset.mostTurns);
  const runs = newExchange(question, asked.length);
  await busy(async () => {
    const all = Promise.all(runs.map((run, i) => {
      const follows = before.map((earlier) => (earlier[i]?.answered ? earlier[i] : earlier.find((run) => run.answered)).name);
      return run.ask({ ...asked[i], question, follows });
    }));
    runs[0].find(".stop").focus({ preventScroll: true });
    runs[0].root.scrollIntoView({ block: "nearest" });
    await all;
  });
  // not if the reader has gone on to something else
  if (document.activeElement === document.body) at("question").focus({ preventScroll: true });
}

async function showAgain() {
  const named = decodeURIComponent(location.hash.slice(1));
  if (!named || at("go").disabled) return;
  clear();
  await busy(() => Promise.all(named.split(";").flatMap((names) => {
    const list = names.split(",").filter(Boolean);
    const runs = newExchange("", list.length);
    return runs.map((run, i) => run.follow(`runs/${encodeURIComponent(list[i])}/events`));
  })));
}

async function showHistory() {
  const answer = await fetch("history").catch(() => null);
  if (answer?.ok) at("history").innerHTML = await answer.text();
}

async function forget(name) {
  await fetch(`runs/${encodeURIComponent(name)}`, { method: "DELETE" }).catch(() => null);
  await showHistory();
}

const OWN_FILES = "uploads:"; // the corpus of one's own files, where the server takes files

async function showFiles() {
  const answer = at("files") && await fetch("files").catch(() => null);
  if (!answer?.ok) return;
  at("own-files").innerHTML = await answer.text();
  offerFiles();
}

// One's own files can be chosen as the corpus while there are some.
function offerFiles() {
  const corpus = at("set-corpus"), any = at("own-files")?.querySelector("li");
  const offered = corpus?.querySelector(`option[value="${OWN_FILES}"]`);
  if (corpus && any && !offered) corpus.add(new Option("your files", OWN_FILES));
  if (offered && !any) offered.remove();
  chooseCorpus();
}

// Resolves to the sentence of a refusal, empty if the file was taken.
function send(file) {
  const { most, mostWords } = at("upload").dataset;
  if (file.size > Number(most)) return Promise.resolve(`${file.name} is too large: a file may have ${mostWords}.`);
  at("sending").hidden = false;
  at("sent").value = 0;
  at("upload-status").textContent = `Sending ${file.name}.`;
  return new Promise((resolve) => {
    const request = new XMLHttpRequest(); // fetch does not tell how much is sent
    request.upload.onprogress = (event) => { at("sent").value = event.loaded / (event.total || 1); };
    request.upload.onload = () => {
      at("sent").removeAttribute("value");
      at("upload-status").textContent = `Reading ${file.name}.`;
    };
    request.onload = () => {
      if (request.status === 204) return resolve("");
      try { resolve(JSON.parse(request.responseText).error); } catch { resolve(`dubito did not take ${file.name}.`); }
    };
    request.onerror = () => resolve(`${file.name} did not arrive, because the connection to dubito was lost: add it again.`);
    request.open("PUT", `files?name=${encodeURIComponent(file.name)}`);
    request.send(file);
  });
}

let sending = Promise.resolve(); // one file at a time, in the order of their choice

async function addFiles(files) {
  let added = 0;
  at("upload-faults").replaceChildren();
  for (const file of files) {
    const refusal = await send(file);
    if (!refusal) added += 1;
    else {
      const banner = document.createElement("p");
      banner.className = "banner";
      banner.textContent = refusal;
      at("upload-faults").append(banner);
    }
  }
  at("sending").hidden = true;
  at("upload-status").textContent = added ? `Added ${added} ${added === 1 ? "file" : "files"}.` : "";
  await showFiles();
  if (added && at("set-corpus")) {
    at("set-corpus").value = OWN_FILES;
    chooseCorpus();
  }
}

async function deleteFile(name) {
  const answer = await fetch(`files?name=${encodeURIComponent(name)}`, { method: "DELETE" }).catch(() => null);
  at("upload-status").textContent = answer?.ok ? `Deleted ${name}.`
    : answer ? (await answer.json()).error : "dubito does not answer: is it still running?";
  await showFiles();
  at("upload").focus(); // the button is gone
}

at("ask").addEventListener("submit", ask);
at("upload")?.addEventListener("change", () => {
  const chosen = [...at("upload").files];
  at("upload").value = ""; // the same file may be chosen again
  sending = sending.then(() => addFiles(chosen));
});
at("own-files")?.addEventListener("click", (event) => {
  const button = event.target.closest(".forget");
  if (button) deleteFile(button.dataset.name);
});
at("graph").addEventListener("change", chooseGraph);
at("settings").addEventListener("change", chooseCorpus);
at("examples").addEventListener("click", (event) => {
  const example = event.target.closest(".example");
  if (!example) return;
  at("question").value = example.textContent;
  if (at("answers")) at("answers").value = example.dataset.answer;
  at("question").focus();
});
// a mark of an answer leads to its passage; the address stays that of the question
at("exchanges").addEventListener("click", (event) => {
  const mark = event.target.closest('a[href^="#passage-"]');
  if (!mark) return;
  event.preventDefault();
  const passage = at(mark.getAttribute("href").slice(1));
  passage.closest("details").open = true;
  passage.closest("ol").querySelector(".cited")?.classList.remove("cited");
  passage.classList.add("cited");
  passage.scrollIntoView({ block: "nearest" });
});
at("history").addEventListener("click", (event) => {
  const button = event.target.closest(".forget");
  if (button) forget(button.dataset.name);
});
at("question").addEventListener("keydown", (key) => {
  if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
  key.preventDefault();
  at("ask").requestSubmit();
});
// a setting with a wrong value may be folded
at("ask").addEventListener("invalid", (event) => {
  const fold = event.target.closest("details");
  if (fold) fold.open = true;
}, true);
window.addEventListener("hashchange", showAgain);
// a browser may keep a page that was left, and its connections
window.addEventListener("pagehide", () => exchanges.flat().forEach((run) => run.aborter.abort()));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  showHistory();
  showFiles(); // another tab may have changed them
});
setInterval(() => exchanges.flat().forEach((run) => run.tick()), 1000);
chooseCorpus();
showFiles();
showHistory();
showAgain();
