// reporter.js: results of node:test in the lines that tests/run.sh counts.
const plain = text => String(text).replace(/\[(?=[ =])/g, '('); // what a test prints must not look like a result

export default async function* report(source) {
  let ok = 0, bad = 0, skipped = 0;
  for await (const { type, data } of source) {
    if (type === 'test:stdout' || type === 'test:stderr') yield plain(data.message);
    if (type === 'test:pass' && (data.skip !== undefined || data.todo !== undefined)) {
      skipped++;
      yield `skipped: ${plain(data.name)}\n`;
    } else if (type === 'test:pass') {
      ok++;
      yield `[       OK ] ${plain(data.name)}\n`;
    } else if (type === 'test:fail') {
      bad++;
      const cause = data.details.error.cause ?? data.details.error;
      yield `failed: ${plain(data.name)}\n${plain(cause.stack ?? cause)}\n`;
    }
  }
  yield `[==========] Running ${ok + bad + skipped} test(s).\n`;
  if (bad) yield `[  FAILED  ] ${bad} test(s), listed above\n`;
  if (skipped) yield `[  SKIPPED ] ${skipped} test(s), listed above\n`;
}
