// SPDX-License-Identifier: Apache-2.0
// A view of one run. refresh() fetches what it shows: called when it is shown or another run is
// chosen, and only while there is something to show.
export class ViewOfRun {
  setRun(run) {
    this.run = run;
    this.refreshIfShown();
  }

  show() {
    this.isShown = true;
    this.refreshIfShown();
  }

  hide() {
    this.isShown = false;
  }

  refreshIfShown() {
    if (this.isShown && this.run) this.refresh();
  }
}
