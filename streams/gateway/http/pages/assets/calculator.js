/** A tool to try: the model calls it, the page works it out, a person may correct it and sends it. */

const MAX_CHARS = 200;
const MAX_DEPTH = 32;
const BINARY = [
  {"+": (a, b) => a + b, "-": (a, b) => a - b},
  {"*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b},
];

export const CALCULATOR = {
  type: "function",
  function: {
    name: "calculator",
    description: "Works out an arithmetic expression of numbers, + - * / % ^ and parentheses.",
    parameters: {
      type: "object",
      properties: {expression: {type: "string"}},
      required: ["expression"],
      additionalProperties: false,
    },
  },
};

/** Of the numbers and signs of an expression; throws Error for anything else. It never runs what it is given. */
export function worked_out(expression) {
  if (expression.length > MAX_CHARS) throw new Error(`longer than ${MAX_CHARS} characters`);
  const parts = expression.match(/\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|\S/gi) ?? [];
  let at = 0,
    depth = 0;

  function level(number) {
    if (number === BINARY.length) return power();
    let value = level(number + 1);
    while (parts[at] in BINARY[number]) value = BINARY[number][parts[at++]](value, level(number + 1));
    return value;
  }
  function power() {
    if (++depth > MAX_DEPTH) throw new Error("nested too deeply");
    const base = unary();
    const value = parts[at] === "^" ? (at++, base ** power()) : base;
    depth--;
    return value;
  }
  function unary() {
    if (parts[at] === "-") {
      at++;
      return -power();
    }
    if (parts[at] === "(") {
      at++;
      const value = level(0);
      if (parts[at++] !== ")") throw new Error("a parenthesis is not closed");
      return value;
    }
    if (!/^[\d.]/.test(parts[at] ?? ""))
      throw new Error(at < parts.length ? `${parts[at]} is not arithmetic` : "it breaks off");
    return Number(parts[at++]);
  }

  const value = level(0);
  if (at < parts.length) throw new Error(`${parts[at]} is not arithmetic`);
  return value;
}

/** What is proposed as the result of a call; empty where a person has to say it. */
export function proposed(name, given) {
  if (name !== CALCULATOR.function.name) return "";
  try {
    return String(worked_out(String(JSON.parse(given).expression)));
  } catch (error) {
    return `error: ${error.message}`;
  }
}
