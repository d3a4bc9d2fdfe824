// Asks for what has changed every two seconds and puts it in its place. Without it the page is
// whole, and loads itself anew.
"use strict";
(() => {
  const PERIOD = 2000;
  const PATIENCE = 8000;
  const alarm = document.getElementById("alarm");
  let heard = new Date();

  const parts = () => [...document.querySelectorAll("[data-tag]")];

  // The server has escaped what is from outside, and no script in it would run: see the headers.
  function put(part, fresh) {
    const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
    const before = new Set([...part.querySelectorAll("details")].map((one) => one.id));
    part.innerHTML = fresh.html;
    part.dataset.tag = fresh.tag;
    for (const one of part.querySelectorAll("details")) {
      if (before.has(one.id)) one.open = open.has(one.id);
    }
  }

  async function look() {
    const have = parts().map((part) => `${part.id}.${part.dataset.tag}`).join(",");
    const signal = AbortSignal.timeout(PATIENCE);
    const answer = await fetch(`page.json?have=${encodeURIComponent(have)}`, { signal });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const told = await answer.json();
    if (told.version !== document.body.dataset.version) {
      location.reload();
      return;
    }
    document.title = told.title;
    for (const part of parts()) {
      if (part.id in told.parts) put(part, told.parts[part.id]);
    }
  }

  async function turn() {
    try {
      await look();
      heard = new Date();
      alarm.hidden = true;
    } catch {
      const when = heard.toISOString().slice(11, 19);
      alarm.textContent = `The watchdog does not answer: this is how it was at ${when} UTC.`;
      alarm.hidden = false;
    }
    setTimeout(turn, document.hidden ? 10 * PERIOD : PERIOD);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) look().catch(() => {}); });
  setTimeout(turn, PERIOD);
})();
