// Overview.

import { heading, put } from "../dom.js";

export default async function render(root) {
  put(root, heading("Overview"));
}
