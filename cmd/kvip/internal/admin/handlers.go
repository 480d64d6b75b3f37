package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

type handler struct{ source Source }

// livez says that the process answers at all; it is not about the brokers.
func (h *handler) livez(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "ok")
}

// readyz is 200 only when a client could bootstrap at every VIP; ?verbose lists each condition.
func (h *handler) readyz(w http.ResponseWriter, r *http.Request) {
	conditions := h.source.Conditions()
	failing := FirstFailing(conditions)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if failing != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	var b strings.Builder
	if r.URL.Query().Has("verbose") {
		for _, c := range conditions {
			mark := "+"
			if !c.OK {
				mark = "-"
			}
			fmt.Fprintf(&b, "[%s] %s: %s\n", mark, c.Name, c.Detail)
		}
	}
	if failing != "" {
		fmt.Fprintf(&b, "not ready: %s\n", failing)
	} else {
		b.WriteString("ready\n")
	}
	_, _ = w.Write([]byte(b.String()))
}

func (h *handler) statusz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.MarshalIndent(h.source.Status(), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

// page is what `kvip status` prints.
func (h *handler) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(h.source.Status().Text()))
}
