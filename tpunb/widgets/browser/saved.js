// What a saved page has besides.

// A model for a page without a kernel: what the kernel said last.
function stored(state) {
  const calls = {};
  return {
    get: (name) => state[name] ?? null,
    set: (name, value) => { state[name] = value; for (const call of calls[`change:${name}`] ?? []) call(); },
    save_changes: () => {},
    on: (what, call) => { (calls[what] ??= []).push(call); },
    off: (what, call) => { calls[what] = (calls[what] ?? []).filter((one) => one !== call); },
    send: () => {},
  };
}
