// Follows the text of a script: prints of each of its `abilities` what the function returned, or how it failed.

const told = {};
for (const ability of abilities) {
  try {
    told[ability.name] = { seen: await ability() };
  } catch (error) {
    told[ability.name] = { failed: String(error?.stack ?? error) };
  }
}
console.log(JSON.stringify(told));
process.exit(0);
