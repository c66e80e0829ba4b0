// A model for a saved page, which has no kernel: the last values of the traits.
function stored(state) {
  const calls = {};
  return {
    get: (name) => state[name] ?? null,
    set: (name, value) => { state[name] = value; for (const call of calls[`change:${name}`] ?? []) call(); },
    save_changes: () => {},
    on: (event, call) => { (calls[event] ??= []).push(call); },
    off: (event, call) => { calls[event] = (calls[event] ?? []).filter((other) => other !== call); },
    send: () => {},
  };
}
