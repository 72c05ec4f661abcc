// Try to send a request, and say who stopped it. The page and its worker offer this to a user who wants to see it.
"use strict";

async function trySending(address) {
  let by = "";
  const note = (event) => { by = event.effectiveDirective || event.violatedDirective; };
  self.addEventListener("securitypolicyviolation", note);
  try {
    await fetch(address, { mode: "no-cors" });
    return { went: true, by };
  } catch {
    await new Promise((done) => { setTimeout(done, 50); }); // the event may follow the failure
    return { went: false, by };
  } finally {
    self.removeEventListener("securitypolicyviolation", note);
  }
}
