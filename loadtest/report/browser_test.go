//go:build e2e

package report

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/kvip/kvip/loadtest/lab"
)

// screenshots is where pictures of the pages are put; wide.png is docs/images/loadtest-report.png:
// go test -tags e2e ./loadtest/report -run Browser -args -screenshots DIR
var screenshots = flag.String("screenshots", "", "directory for screenshots of the report")

// browser is a Chromium without network that notes what pages ask for and complain about.
type browser struct {
	context.Context
	mu       sync.Mutex
	requests []string
	faults   []string
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	path, err := lab.EnsureCommand(ctx, "chromium", "chromium", "fonts-dejavu-core")
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("hide-scrollbars", true), chromedp.ModifyCmdFunc(withoutNetwork))
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	b := &browser{}
	ctx, stopTab := chromedp.NewContext(ctx, chromedp.WithListener(b.listen))
	t.Cleanup(stopTab)
	b.Context = ctx
	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		if _, err := cdp.Call(ctx, tab, network.Enable, network.EnableParams{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, tab, cdplog.Enable, cdp.Empty{})
		return err
	})); err != nil {
		t.Fatal(err)
	}
	return b
}

// withoutNetwork starts the browser in a network namespace that has nothing in it; it is driven through a pipe. It dies
// with the test.
func withoutNetwork(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *cdplog.EventEntryAdded:
		b.faults = append(b.faults, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventConsoleAPICalled:
		b.faults = append(b.faults, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, e.ExceptionDetails.Text)
	}
}

// seen is what the page looks like to who looks at it.
type seen struct {
	Text       string
	Background string
	Charts     int     // that are visible
	Smallest   float64 // text of a chart, in pixels on the screen
	Wider      float64 // by how much the page is wider than the screen
	Collisions []string
}

const look = `(() => {
	const out = {Text: document.body.innerText, Background: getComputedStyle(document.body).backgroundColor, Charts: 0, Smallest: 99,
		Wider: document.documentElement.scrollWidth - window.innerWidth, Collisions: []};
	for (const svg of document.querySelectorAll('svg')) {
		if (svg.getBoundingClientRect().width === 0) continue;
		out.Charts++;
		const texts = [...svg.querySelectorAll('text')].map(t => ({s: t.textContent, r: t.getBoundingClientRect(), size: parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a}));
		const frame = svg.getBoundingClientRect();
		texts.forEach((a, i) => {
			out.Smallest = Math.min(out.Smallest, a.size);
			if (a.r.left < frame.left - 2 || a.r.right > frame.right + 2) out.Collisions.push(a.s + ' | edge');
			for (const b of texts.slice(i + 1))
				if (a.r.left < b.r.right - 1 && b.r.left < a.r.right - 1 && a.r.top < b.r.bottom - 4 && b.r.top < a.r.bottom - 4)
					out.Collisions.push(svg.getAttribute('aria-label') + ': ' + a.s + ' | ' + b.s);
		});
	}
	for (const c of document.querySelectorAll('.card b')) if (c.scrollWidth > c.parentElement.clientWidth) out.Collisions.push('card ' + c.textContent);
	return out;
})()`

// open shows the file at a width, light or dark, and returns what is seen. name is for the screenshot.
func (b *browser) open(t *testing.T, path string, width int64, scheme, name string) seen {
	t.Helper()
	size := []chromedp.EmulateViewportOption{}
	if width < 600 {
		size = append(size, chromedp.EmulateMobile)
	}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if err := chromedp.Do(b, chromedp.EmulateViewport(width, 1230, size...), chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, media)
		return err
	}), chromedp.Navigate("file://"+path)); err != nil {
		t.Fatal(err)
	}
	found, err := chromedp.Run(b, chromedp.Evaluate[seen](look))
	if err != nil {
		t.Fatal(err)
	}
	if *screenshots != "" {
		for file, take := range map[string]chromedp.Action[[]byte]{name + ".png": chromedp.CaptureScreenshot(), name + "-full.png": chromedp.FullScreenshot(100)} {
			picture, err := chromedp.Run(b, take)
			if err == nil {
				err = os.WriteFile(filepath.Join(*screenshots, file), picture, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return found
}

func TestABrowserWithoutNetworkShowsTheReport(t *testing.T) {
	r, two := sample("kvip", 1), sample("kvip", 1)
	two.Sides = append(two.Sides, sample("haproxy", 1.4).Sides...)
	two.Verdict.Void = []string{"lag p99 1.31ms is above 20% of the latency's p99"}
	b := startBrowser(t)
	backgrounds := map[string]bool{}
	for _, view := range []struct {
		name, scheme string
		run          *Run
		width        int64
		charts       int
	}{
		{"wide", "light", r, 1100, 6}, {"dark", "dark", r, 1100, 6}, {"narrow", "light", r, 390, 6}, {"two", "light", two, 1100, 9}, {"two-narrow", "dark", two, 390, 9},
	} {
		path := filepath.Join(t.TempDir(), view.name+".html")
		if err := WriteFile(path, view.run.WriteHTML); err != nil {
			t.Fatal(err)
		}
		got := b.open(t, path, view.width, view.scheme, view.name)
		backgrounds[got.Background] = true
		for _, want := range []string{"storm on kvip", "Latency over time", "kill broker 2", "connection reset by peer", "ip_local_port_range"} {
			if !strings.Contains(got.Text, want) {
				t.Errorf("%s: %q is not to be read", view.name, want)
			}
		}
		if got.Charts != view.charts || got.Smallest < 9 || got.Wider > 0 {
			t.Errorf("%s: %d charts, smallest text %.1f px, %.0f px too wide; want %d charts, 9 px, 0 px", view.name, got.Charts, got.Smallest, got.Wider, view.charts)
		}
		if len(got.Collisions) > 0 {
			t.Errorf("%s: texts in each other's way:\n%s", view.name, strings.Join(got.Collisions, "\n"))
		}
	}
	if len(backgrounds) != 2 {
		t.Errorf("backgrounds %v: dark is not dark", backgrounds)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) != 5 {
		t.Errorf("%d requests for 5 pages: %v", len(b.requests), b.requests)
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, "file://") {
			t.Errorf("the page asked for %s", url)
		}
	}
	if len(b.faults) > 0 {
		t.Errorf("the browser complained:\n%s", strings.Join(b.faults, "\n"))
	}
}
