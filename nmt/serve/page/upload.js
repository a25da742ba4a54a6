// The form for files.
import { translateFile } from "./files.js";
import { text } from "./messages.js";
import { problem } from "./server.js";

const $ = (id) => document.getElementById(id);
const say = (message) => ($("file-status").textContent = message);

/** Let the reader translate files between the languages that `pair()` returns; `refuse(error)` hears of errors. */
export function offerUpload(settings, pair, refuse) {
  let request = null;
  $("file-cancel").addEventListener("click", () => request.abort());
  $("file-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    request = new AbortController();
    show({ working: true });
    try {
      const file = $("file").files[0];
      const wait = (seconds) => say(seconds ? text("wait", { seconds }) : "");
      const result = await translateFile(file, pair(), settings, request.signal, count, wait);
      offer(result);
      say(text("file_done", { name: file.name }));
    } catch (error) {
      say(request.signal.aborted ? text("file_cancelled") : problem(error));
      if (!request.signal.aborted) refuse(error);
    }
    show({ working: false });
  });
}

function count(done, all) {
  $("progress").max = all;
  $("progress").value = done;
  $("progress").setAttribute("aria-valuetext", text("file_parts", { done, all }));
}

function offer(file) {
  const link = $("file-result");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(file);
  link.download = file.name;
  link.textContent = text("download", { name: file.name });
  link.hidden = false;
}

/** Show what belongs to the state of the work; the focus stays in the form. */
function show({ working }) {
  const hadFocus = $("file-form").contains(document.activeElement);
  if (working) {
    count(0, 1);
    say("");
    $("file-result").hidden = true;
  }
  $("file-progress").hidden = $("file-cancel").hidden = !working;
  $("file-translate").hidden = working;
  if (hadFocus) [$("file-cancel"), $("file-result"), $("file-translate")].find((node) => !node.hidden).focus();
}
