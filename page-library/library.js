// What the page draws with; all else of the library is left out of the file.
export { areaY, dot, gridY, line, link, plot, pointerX, rectY, ruleX, ruleY, text, tip } from "@observablehq/plot";
