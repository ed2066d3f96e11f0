/* The picture of a run in its cell. Everything it shows comes ready drawn and escaped from the
   kernel; nothing is sent back, since a kernel that trains does not answer. */

const PANELS = [
  ["allocation", "Devices over time"],
  ["finish", "Finish as predicted"],
  ["parts", "What a step consists of"],
  ["scaling", "Steps a second by devices"],
];

function made(tag, parent, name) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  parent.append(element);
  return element;
}

function fill(element, markup) {
  if (element.shown === markup) return;
  element.shown = markup;
  element.innerHTML = markup;
  for (const time of element.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.title = at.toLocaleString();
    time.textContent = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }
}

function render({ model, el }) {
  const root = made("section", el, "selfsched-run selfsched-live");
  root.setAttribute("aria-label", "Training run");
  const head = made("div", root);
  const heard = made("div", root, "selfsched-heard");
  heard.setAttribute("aria-live", "polite");
  const panels = made("div", root, "selfsched-panels");
  const charts = PANELS.map(([name, title]) => {
    const figure = made("figure", panels);
    made("figcaption", figure).textContent = title;
    return [name, figure, made("div", figure)];
  });
  const details = made("details", root);
  made("summary", details).textContent = "What happened";
  const said = made("ol", details);
  said.tabIndex = 0;
  said.setAttribute("aria-label", "What happened, newest first");
  const output = made("details", root);
  made("summary", output).textContent = "Newest output";
  const tail = made("pre", output);
  tail.tabIndex = 0;

  const shows = {
    head: () => fill(head, model.get("head")),
    panels: () => {
      const drawn = model.get("panels");
      for (const [name, figure, place] of charts) {
        figure.hidden = !drawn[name];
        fill(place, drawn[name] ?? "");
      }
    },
    said: () => {
      fill(said, model.get("said"));
      details.hidden = !model.get("said");
    },
    newest: () => { heard.textContent = model.get("newest"); },
    tail: () => {
      tail.textContent = model.get("tail");
      output.hidden = !model.get("tail");
    },
  };
  for (const [name, show] of Object.entries(shows)) {
    model.on(`change:${name}`, show);
    show();
  }
  return () => {
    for (const [name, show] of Object.entries(shows)) model.off(`change:${name}`, show);
  };
}

export default { render };
