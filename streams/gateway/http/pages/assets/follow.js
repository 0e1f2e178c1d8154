/** Who is at the end of what grows leaves it only by scrolling up: a resize and a growing answer move the end, not the
 *  reader. */

export class Follower {
  #view;
  #atEnd = true;
  #lastTop = 0;

  constructor(view) {
    this.#view = view;
    view.onscroll = () => this.note();
    new ResizeObserver(() => {
      this.note();
      this.follow();
    }).observe(view);
  }

  /** Browsers tell of a scroll with the next drawing, so whoever moves the end asks here first. */
  note() {
    const view = this.#view;
    const top = view.scrollTop,
      below = view.scrollHeight - top - view.clientHeight;
    if (below < 2) this.#atEnd = true;
    else if (top < this.#lastTop) this.#atEnd = false;
    else if (top > this.#lastTop && below < 30) this.#atEnd = true;
    this.#lastTop = top;
    // Else the browser may keep the place of who reads elsewhere; at the end that would look like scrolling up.
    view.style.overflowAnchor = this.#atEnd ? "none" : "auto";
  }

  /** Keeps the end in view, unless the reader had scrolled up. */
  follow(always = false) {
    if (!always && !this.#atEnd) return;
    this.#view.scrollTop = this.#view.scrollHeight;
    this.note();
  }
}
