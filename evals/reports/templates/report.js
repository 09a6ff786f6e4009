"use strict";
const traces = JSON.parse(document.getElementById("steps").textContent);
const questions = [...document.querySelectorAll(".q")];
const [text, system, outcome] = ["text", "system", "outcome"].map((id) => document.getElementById(id));
const texts = questions.map((one) => one.textContent.toLowerCase());

function fits(question, place) {
  const letters = question.dataset.outcomes;
  const some = system.value === "" ? letters : letters[Number(system.value)];
  const wanted = outcome.value;
  const right = wanted === "" || (wanted === "differ" ? new Set(letters).size > 1 : some.includes(wanted));
  return right && text.value.toLowerCase().split(/\s+/).every((word) => texts[place].includes(word));
}

function filter() {
  let shown = 0;
  questions.forEach((question, place) => {
    question.hidden = !fits(question, place);
    shown += !question.hidden;
    question.querySelectorAll(".result").forEach((result, number) => {
      result.hidden = system.value !== "" && Number(system.value) !== number;
    });
  });
  document.getElementById("shown").textContent = `${shown} of ${questions.length} questions`;
  document.querySelectorAll(".questions").forEach((some) => {
    some.hidden = !some.querySelector(".q:not([hidden])");
  });
}

function cell(row, content, kind) {
  const made = row.insertCell();
  made.className = kind;
  made.textContent = content;
}

function unfold(event) {
  const holder = event.target;
  if (!holder.open || holder.dataset.trace === undefined || holder.querySelector("table")) return;
  const [steps, more] = traces[Number(holder.dataset.trace)];
  const around = document.createElement("div");
  around.className = "scroll";
  const table = around.appendChild(document.createElement("table"));
  const head = table.createTHead().insertRow();
  ["step", "seconds", "calls", "tokens", "what it did"].forEach((name, place) => cell(head, name, place && place < 4 ? "n dim" : "dim"));
  const body = table.createTBody();
  for (const [depth, node, runs, seconds, calls, read, written, words, fault] of steps) {
    const row = body.insertRow();
    cell(row, "\u2003".repeat(depth) + node + (runs > 1 ? ` ×${runs}` : ""), "node");
    cell(row, seconds.toFixed(2), "n");
    cell(row, calls || "", "n");
    cell(row, calls ? `${read.toLocaleString("en")} + ${written.toLocaleString("en")}` : "", "n");
    cell(row, fault ? `failed: ${fault}` : words, fault ? "out warn" : "out");
  }
  if (more) cell(body.insertRow(), `and ${more} more`, "dim");
  holder.append(around);
}

[text, system, outcome].forEach((one) => one.addEventListener("input", filter));
document.addEventListener("toggle", unfold, true);
document.getElementById("filter").hidden = false;
filter();
