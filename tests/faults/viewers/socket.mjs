// Follows a response over `/v1/stream` to its end, at the next gateway when its own lets it go, and prints what it saw,
// a line of JSON each. Needs no package, and a `WebSocket` that is global.

const { urls, key, responseId } = JSON.parse(process.env.WATCH);
const tell = line => console.log(JSON.stringify(line));
let last = 0, next = 0;

function follow() {
  const url = urls[next++ % urls.length];
  const socket = new WebSocket(`${url.replace(/^http/, "ws")}/v1/stream`, ["sluice.v1", `sluice.key.${key}`]);
  let advisedMs = 0, isLeft = false;

  const goOn = why => {
    if (isLeft) return;
    isLeft = true;
    tell({ lost: why });
    setTimeout(follow, Math.max(advisedMs, 100));
  };
  const take = {
    delta: message => {
      last = message.sequence_number;
      tell({ first: message.first_sequence, number: last, text: message.text });
    },
    terminal: message => {
      isLeft = true;
      tell({ ended: message.finish_reason, number: message.sequence_number });
      socket.close();
    },
    closing: message => tell({ told: message.reason }),
    error: message => {
      advisedMs = message.retry_after_ms ?? 0;
      tell({ told: message.error.code });
      socket.close();
    },
  };
  socket.onopen = () => {
    tell({ opened: url });
    socket.send(JSON.stringify({ type: "resume", response_id: responseId, starting_after: last }));
  };
  socket.onmessage = event => {
    const message = JSON.parse(event.data);
    take[message.type]?.(message);
  };
  // A connection that was never made says `error` alone in some versions.
  socket.onclose = socket.onerror = () => goOn("broken");
}

follow();
