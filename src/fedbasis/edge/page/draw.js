// A small canvas to draw on, with mouse, pen or finger.
"use strict";

const PENS = [
  { name: "white on black", paper: "#000000", pen: "#ffffff" },
  { name: "black on white", paper: "#ffffff", pen: "#000000" },
  { name: "yellow on blue", paper: "#1f4e8c", pen: "#ffd84a" },
  { name: "red on green", paper: "#9fcf9a", pen: "#a3241c" },
];

class Pad {
  // changed() is called while something is drawn, ended() after every stroke.
  constructor(canvas, { changed = () => {}, ended = () => {} } = {}) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.colors = PENS[0];
    this.empty = true;
    this.clear();
    let last = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
    };
    const line = (from, to) => {
      this.empty = false;
      const context = this.context;
      context.strokeStyle = this.colors.pen;
      context.lineWidth = canvas.width * 0.085;
      context.lineCap = context.lineJoin = "round";
      context.beginPath();
      context.moveTo(...from);
      context.lineTo(...to);
      context.stroke();
      changed();
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      canvas.setPointerCapture(event.pointerId);
      last = place(event);
      line(last, last);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) {
        const next = place(one);
        line(last, next);
        last = next;
      }
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => {
        if (last) ended();
        last = null;
      });
    }
  }

  clear() {
    this.context.fillStyle = this.colors.paper;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
  }

  use(colors) {
    this.colors = colors;
    this.clear();
  }

  // What is drawn, as the worker reads images.
  drawn() {
    const { data, width, height } = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height);
    return { data, width, height };
  }
}
