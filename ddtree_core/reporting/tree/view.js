// View of the TreeView widget. Everything it shows lies in the model's own state (`rounds`, `index`), so it steps
// in a saved notebook or an exported page as it does beside a running kernel.

function element(tag, className, attributes = {}) {
  const node = document.createElement(tag);
  node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function build() {
  const root = element("div", "ddtree-view", { role: "group", "aria-label": "Draft trees, round by round", tabindex: "0" });
  const bar = element("div", "ddtree-bar");
  const previous = element("button", "ddtree-previous", { type: "button", "aria-label": "Previous round" });
  const next = element("button", "ddtree-next", { type: "button", "aria-label": "Next round" });
  const slider = element("input", "ddtree-slider", { type: "range", min: "0", step: "1", "aria-label": "Round" });
  const place = element("output", "ddtree-place", { "aria-live": "polite" });
  const fit = element("button", "ddtree-fit", { type: "button", "aria-pressed": "false", title: "Whole tree in the frame" });
  const facts = element("div", "ddtree-facts");
  const text = element("div", "ddtree-text", { dir: "auto" });
  const tree = element("div", "ddtree-tree");
  previous.textContent = "‹";
  next.textContent = "›";
  fit.textContent = "Fit";
  bar.append(previous, next, slider, place, fit);
  root.append(bar, facts, text, tree);
  return { root, previous, next, slider, place, fit, facts, text, tree };
}

function showFacts(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value]) => {
      const pair = element("span", "ddtree-fact");
      const term = element("span", "ddtree-fact-name");
      const detail = element("span", "ddtree-fact-value");
      term.textContent = name;
      detail.textContent = value;
      pair.append(term, detail);
      return pair;
    }),
  );
}

function showText(panel, before, added) {
  const mark = element("mark", "ddtree-added");
  mark.textContent = added;
  panel.replaceChildren(document.createTextNode(before), mark);
  panel.scrollTop = panel.scrollHeight;
}

// A tree of hundreds of nodes is taller than its frame: where the accepted path lies below the first screen, bring
// it to the middle of the frame, or at least its end.
function showTree(frame, svg) {
  frame.innerHTML = svg;
  const states = ["root", "accepted", "bonus"].map((state) => `g[data-state="${state}"] g[data-node]`);
  const boxes = [...frame.querySelectorAll(states.join(","))].map((node) => node.getBoundingClientRect());
  if (!boxes.length) return;
  let top = Math.min(...boxes.map((box) => box.top));
  let bottom = Math.max(...boxes.map((box) => box.bottom));
  if (bottom - top > frame.clientHeight) ({ top, bottom } = boxes[boxes.length - 1]);
  const start = frame.getBoundingClientRect().top - frame.scrollTop;
  const visible = bottom - start < frame.clientHeight - 8;
  frame.scrollTop = visible ? 0 : (top + bottom) / 2 - start - frame.clientHeight / 2;
}

function render({ model, el }) {
  const parts = build();
  const rounds = () => model.get("rounds");
  const shown = () => Math.min(Math.max(model.get("index"), 0), rounds().length - 1);

  function draw() {
    const all = rounds();
    const index = shown();
    const round = all[index];
    if (!round) return;
    parts.slider.max = String(all.length - 1);
    parts.slider.value = String(index);
    parts.slider.setAttribute("aria-valuetext", round.title);
    parts.previous.disabled = index === 0;
    parts.next.disabled = index === all.length - 1;
    parts.place.textContent = round.title;
    showFacts(parts.facts, round.facts);
    const before = all.slice(0, index).map((each) => each.text);
    showText(parts.text, [model.get("lead"), ...before].join(""), round.text);
    showTree(parts.tree, round.svg);
  }

  function go(index) {
    const target = Math.min(Math.max(index, 0), rounds().length - 1);
    if (target === model.get("index")) return;
    model.set("index", target);
    model.save_changes();
  }

  const keys = {
    ArrowLeft: () => go(shown() - 1),
    ArrowRight: () => go(shown() + 1),
    Home: () => go(0),
    End: () => go(rounds().length - 1),
  };
  // In the capture phase of the window, because JupyterLab binds the same keys on the document.
  function onKey(event) {
    const plain = !(event.altKey || event.ctrlKey || event.metaKey || event.shiftKey);
    if (!plain || !(event.key in keys) || !parts.root.contains(event.target)) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  }

  parts.previous.addEventListener("click", () => go(shown() - 1));
  parts.next.addEventListener("click", () => go(shown() + 1));
  parts.fit.addEventListener("click", () => {
    const on = parts.tree.classList.toggle("ddtree-fitted");
    parts.fit.setAttribute("aria-pressed", String(on));
    draw();
  });
  parts.slider.addEventListener("input", () => go(Number(parts.slider.value)));
  window.addEventListener("keydown", onKey, true);
  model.on("change:index", draw);
  model.on("change:rounds", draw);
  el.append(parts.root);
  draw();
  // The frame has no size before the page has been laid out.
  const later = requestAnimationFrame(draw);
  return () => {
    cancelAnimationFrame(later);
    window.removeEventListener("keydown", onKey, true);
  };
}

export default { render };
