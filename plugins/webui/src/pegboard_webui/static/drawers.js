// The two sides and the tabs. Where there is room both stand beside the conversation; else one lies
// over it at a time, and what is under it cannot be reached.

import { byId } from "./dom.js";

const TABS = ["settings", "metrics", "plugins"];
const SIDES = { sidebar: "(max-width: 720px)", panel: "(max-width: 1080px)" };

/** `kept` has what was open before; `changed(kept)` is called to keep it; `shown(tab)` when a tab is. */
export class Drawers {
  constructor(kept, changed, shown) {
    this.kept = { sidebar: true, panel: true, tab: "settings", ...kept };
    this.changed = changed;
    this.shown = shown;
    this.over = null;
    for (const side of Object.keys(SIDES)) {
      byId(`toggle-${side}`).addEventListener("click", () => this.toggle(side));
      byId(`close-${side}`).addEventListener("click", () => this.close(side));
      matchMedia(SIDES[side]).addEventListener("change", () => this.draw());
    }
    byId("veil").addEventListener("click", () => this.close(this.over));
    for (const tab of TABS) {
      byId(`tab-${tab}`).addEventListener("click", () => this.select(tab));
      byId(`tab-${tab}`).addEventListener("keydown", (event) => this.step(event, tab));
    }
    this.draw();
  }

  isDrawer(side) {
    return matchMedia(SIDES[side]).matches;
  }

  isOpen(side) {
    return this.isDrawer(side) ? this.over === side : this.kept[side];
  }

  toggle(side) {
    if (this.isOpen(side)) return this.close(side);
    if (this.isDrawer(side)) this.over = side;
    else this.keep({ [side]: true });
    this.draw();
    if (this.over === side) byId(side).querySelector("button:not([hidden])").focus();
    return undefined;
  }

  close(side) {
    const hadFocus = side && byId(side).contains(document.activeElement);
    if (side && this.isDrawer(side)) this.over = null;
    else if (side) this.keep({ [side]: false });
    this.draw();
    if (hadFocus) byId(`toggle-${side}`).focus();
  }

  /** Close what lies over the conversation; whether something did. */
  escape() {
    if (!this.over) return false;
    this.close(this.over);
    return true;
  }

  select(tab) {
    this.keep({ tab });
    this.draw();
  }

  step(event, tab) {
    const move = { ArrowRight: 1, ArrowLeft: TABS.length - 1 }[event.key];
    if (!move) return;
    const next = TABS[(TABS.indexOf(tab) + move) % TABS.length];
    this.select(next);
    byId(`tab-${next}`).focus();
  }

  keep(part) {
    this.kept = { ...this.kept, ...part };
    this.changed(this.kept);
  }

  draw() {
    if (this.over && !this.isDrawer(this.over)) this.over = null;
    for (const side of Object.keys(SIDES)) {
      const open = this.isOpen(side);
      byId("app").classList.toggle(`no-${side}`, !open);
      byId(side).inert = !open || (this.over !== null && this.over !== side);
      byId(`toggle-${side}`).setAttribute("aria-expanded", String(open));
    }
    document.querySelector(".main").inert = this.over !== null;
    byId("veil").hidden = this.over === null;
    for (const tab of TABS) {
      const chosen = this.kept.tab === tab;
      byId(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
      byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
      byId(`pane-${tab}`).hidden = !chosen;
    }
    if (this.isOpen("panel")) this.shown(this.kept.tab);
  }
}
