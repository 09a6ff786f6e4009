// Sends the question and shows the events of its run. The server has escaped all text in them.
"use strict";

const at = (id) => document.getElementById(id);
const began = new Map(); // the running steps: the time of the first event, and the node
let running = null; // the AbortController of the question that runs
let run = null; // the name of its run

const showStatus = (words) => { at("status").textContent = words; };

function fail(sentence) {
  const banner = document.createElement("p");
  banner.className = "banner fault";
  banner.id = "fault";
  banner.setAttribute("role", "alert");
  banner.textContent = sentence;
  at("outcome").replaceChildren(banner);
}

function linkToTrace() {
  const line = document.createElement("p"), link = document.createElement("a");
  line.className = "links";
  link.href = `runs/${run}`;
  link.target = "_blank";
  link.textContent = "Open the trace up to here";
  line.append(link);
  at("outcome").replaceChildren(line);
}

const inputs = () => [...at("settings").querySelectorAll("[name]")];
const valueOf = (input) => (input.type === "checkbox" ? String(input.checked) : input.value);

async function chooseGraph() {
  const before = new Map(inputs().map((input) => [input.name, input.value]));
  const answer = await fetch(`form/${encodeURIComponent(at("graph").value)}`).catch(() => null);
  if (!answer?.ok) {
    fail("dubito does not answer: is it still running?");
    return;
  }
  at("settings").innerHTML = await answer.text();
  for (const input of inputs()) { // the corpus and the model stay chosen
    if (["corpus", "llm"].includes(input.name)) input.value = before.get(input.name);
  }
}

function place(step) {
  const shown = at(`step-${step.number}`);
  if (shown) return shown;
  const parent = step.within ? at(`step-${step.within}`).lastElementChild : at("steps");
  let round = parent.querySelector(`:scope > [data-round="${step.round}"]`);
  if (!round) {
    round = document.createElement("div");
    round.className = "round";
    round.dataset.round = step.round;
    parent.append(round);
  }
  const card = document.createElement("article");
  card.id = `step-${step.number}`;
  card.append(document.createElement("div"), document.createElement("div"));
  round.append(card);
  return card;
}

function show(step) {
  const card = place(step);
  card.className = `card ${step.state}`;
  card.firstElementChild.innerHTML = step.html;
  if (step.state !== "running") began.delete(step.number);
  else if (!began.has(step.number)) began.set(step.number, { at: performance.now(), node: step.node });
  tick();
}

function tick() {
  for (const [number, step] of began) {
    const clock = at(`step-${number}`).querySelector(":scope > :first-child .clock");
    if (clock) clock.textContent = `${((performance.now() - step.at) / 1000).toFixed(0)} s`;
  }
}

function handle(kind, data) {
  if (kind === "begun") run = data.name;
  else if (kind === "step") {
    show(data);
    const names = [...new Set([...began.values()].map((step) => step.node))];
    if (names.length) showStatus(`Running: ${names.join(", ")}`);
  } else if (kind === "answer") {
    at("outcome").innerHTML = data.html;
  } else if (kind === "done" || kind === "fault") {
    at("outcome").innerHTML = data.html;
    showStatus(kind === "done" ? "Done." : "");
    at("outcome").focus();
  }
  return kind === "done" || kind === "fault";
}

async function readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, kind, data] = event.match(/^event: (.*)\ndata: (.*)$/);
      ended = handle(kind, JSON.parse(data)) || ended;
    }
  }
  if (!ended) throw new TypeError("the connection was lost");
}

async function ask(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  run = null;
  at("outcome").replaceChildren();
  at("steps").replaceChildren();
  at("go").disabled = true;
  at("stop").hidden = false;
  showStatus("Sent.");
  at("now").scrollIntoView({ block: "nearest" });
  const settings = Object.fromEntries(inputs().map((input) => [input.name, valueOf(input)]));
  const answers = at("answers") ? at("answers").value.split("\n") : [];
  const question = { graph: at("graph").value, question: at("question").value, settings, answers };
  try {
    const answer = await fetch("ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
      signal: running.signal,
    });
    if (answer.ok) await readEvents(answer.body);
    else {
      showStatus("");
      fail((await answer.json()).error);
    }
  } catch (fault) {
    showStatus(fault.name === "AbortError" ? "Stopped." : "");
    if (fault.name !== "AbortError") fail("The connection to dubito was lost: is it still running?");
    else if (run) linkToTrace();
  } finally {
    for (const number of began.keys()) at(`step-${number}`).classList.replace("running", "stopped");
    began.clear();
    running = null;
    at("go").disabled = false;
    at("stop").hidden = true;
  }
}

at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running?.abort());
at("graph").addEventListener("change", chooseGraph);
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
setInterval(tick, 1000);
