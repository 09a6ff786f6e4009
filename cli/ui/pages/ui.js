// Sends the question and puts what comes back, step by step, where it belongs. The server has escaped it all.
"use strict";

const at = (id) => document.getElementById(id);
const began = new Map(); // the steps under way: when each was first heard of
let asking = null; // what ends the question under way
let run = null; // its name

const say = (words) => { at("status").textContent = words; };

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
  link.textContent = "Open the trace as far as it got";
  line.append(link);
  at("outcome").replaceChildren(line);
}

const inputs = () => [...at("settings").querySelectorAll("[name]")];
const valueOf = (one) => (one.type === "checkbox" ? String(one.checked) : one.value);

async function chooseGraph() {
  const before = new Map(inputs().map((one) => [one.name, one.value]));
  const answer = await fetch(`form/${encodeURIComponent(at("graph").value)}`).catch(() => null);
  if (!answer?.ok) {
    fail("dubito does not answer: is it still running?");
    return;
  }
  at("settings").innerHTML = await answer.text();
  for (const one of inputs()) { // the corpus and the model stay chosen
    if (["corpus", "llm"].includes(one.name)) one.value = before.get(one.name);
  }
}

function place(step) {
  const found = at(`step-${step.number}`);
  if (found) return found;
  const where = step.within ? at(`step-${step.within}`).lastElementChild : at("steps");
  let round = where.querySelector(`:scope > [data-round="${step.round}"]`);
  if (!round) {
    round = document.createElement("div");
    round.className = "round";
    round.dataset.round = step.round;
    where.append(round);
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
  for (const [number, one] of began) {
    const clock = at(`step-${number}`).querySelector(":scope > :first-child .clock");
    if (clock) clock.textContent = `${((performance.now() - one.at) / 1000).toFixed(0)} s`;
  }
}

function hear(kind, data) {
  if (kind === "begun") run = data.name;
  else if (kind === "step") {
    show(data);
    const names = [...new Set([...began.values()].map((one) => one.node))];
    if (names.length) say(`Under way: ${names.join(", ")}`);
  } else if (kind === "done" || kind === "fault") {
    at("outcome").innerHTML = data.html;
    say(kind === "done" ? "Done." : "");
    at("outcome").focus();
  }
  return kind === "done" || kind === "fault";
}

async function listen(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, kind, data] = event.match(/^event: (.*)\ndata: (.*)$/);
      ended = hear(kind, JSON.parse(data)) || ended;
    }
  }
  if (!ended) throw new TypeError("the connection was lost");
}

async function ask(event) {
  event.preventDefault();
  if (asking) return;
  asking = new AbortController();
  run = null;
  at("outcome").replaceChildren();
  at("steps").replaceChildren();
  at("go").disabled = true;
  at("stop").hidden = false;
  say("Asked.");
  at("now").scrollIntoView({ block: "nearest" });
  const settings = Object.fromEntries(inputs().map((one) => [one.name, valueOf(one)]));
  const answers = at("answers") ? at("answers").value.split("\n") : [];
  const question = { graph: at("graph").value, question: at("question").value, settings, answers };
  try {
    const answer = await fetch("ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
      signal: asking.signal,
    });
    if (answer.ok) await listen(answer.body);
    else {
      say("");
      fail((await answer.json()).error);
    }
  } catch (fault) {
    say(fault.name === "AbortError" ? "Stopped." : "");
    if (fault.name !== "AbortError") fail("The connection to dubito was lost: is it still running?");
    else if (run) linkToTrace();
  } finally {
    for (const number of began.keys()) at(`step-${number}`).classList.replace("running", "stopped");
    began.clear();
    asking = null;
    at("go").disabled = false;
    at("stop").hidden = true;
  }
}

at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => asking?.abort());
at("graph").addEventListener("change", chooseGraph);
at("question").addEventListener("keydown", (key) => {
  if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
  key.preventDefault();
  at("ask").requestSubmit();
});
// a setting that is out of its range may be folded away
at("ask").addEventListener("invalid", (event) => {
  const fold = event.target.closest("details");
  if (fold) fold.open = true;
}, true);
setInterval(tick, 1000);
