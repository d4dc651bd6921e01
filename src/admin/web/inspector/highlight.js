// Finds the parts of a received text that the sent request still has. An aid for the eye: the engine
// decides, this only looks for the same words.

/** Pieces shorter than this would match by chance. */
const LEAST = 3;
/** Pieces that are looked for. */
const MOST_PIECES = 4000;

/**
 * Returns the ranges of `received` that occur in `sent`, in order and apart: `[[from, to], …]`. A note
 * writes an argument of a call as `name: value`; then the value alone is looked for.
 */
export function keptRanges(received, sent) {
  const ranges = [];
  let from = 0;
  for (const piece of pieces(sent).slice(0, MOST_PIECES)) {
    for (const own of [piece, piece.replace(/^[^:]{1,64}: /, "")]) {
      let at = received.indexOf(own, from);
      if (at < 0) at = received.indexOf(own);
      if (at < 0 || own.trim().length < LEAST) continue;
      ranges.push([at, at + own.length]);
      from = at + own.length;
      break;
    }
  }
  return joined(ranges, received);
}

function pieces(sent) {
  const found = [];
  for (const line of sent.split("\n")) {
    const names = line.match(/^also: (.*)$/);
    const own = names ? names[1].split(", ") : line.replace(/^> [^:]{1,64}: |^\| /, "").split(/ … |…/);
    for (const piece of own) {
      if (piece.trim().length >= LEAST) found.push(piece);
    }
  }
  return found;
}

/** Joins ranges that touch or that only spaces separate. */
function joined(ranges, text) {
  ranges.sort((left, right) => left[0] - right[0]);
  const out = [];
  for (const [from, to] of ranges) {
    const last = out.at(-1);
    if (last && (from <= last[1] || text.slice(last[1], from).trim() === "")) {
      last[1] = Math.max(last[1], to);
    } else {
      out.push([from, to]);
    }
  }
  return out;
}
