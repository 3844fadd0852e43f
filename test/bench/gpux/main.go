// SPDX-License-Identifier: Apache-2.0

// Command gpux compares examples/gpux with a Python server (FastAPI, uvicorn and ONNX Runtime) on the
// same model, the digits of examples/gpux, on the processor.
//
// Both have one thread for an operator and no telemetry. They take turns: in each round, each server
// gets the same load for the same time, from clients in this process that send the next request after
// an answer. The medians of the rounds are printed. The answers of both must be those of the framework
// that trained the model. The exit status is 1 if gpux has fewer requests per second in any load.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

func main() {
	gpux := flag.String("gpux", "bin/gpux", "the command gpux")
	python := flag.String("python", ".tools/gpuxbench/python", "a Python with the packages of scripts/gpuxbench.txt")
	digits := flag.String("digits", "examples/gpux/digits", "the folder of the model")
	rounds := flag.Int("rounds", 5, "rounds; the medians are printed")
	duration := flag.Duration("time", 2*time.Second, "time of a load in a round")
	flag.Parse()
	if _, err := os.Stat(*python); err != nil {
		fmt.Fprintln(os.Stderr, "gpux: skipped:", err)
		return
	}
	missed, err := compare(*gpux, *python, *digits, *rounds, *duration)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpux:", err)
		os.Exit(2)
	}
	if missed {
		os.Exit(1)
	}
}

// expected has images and what the model must answer.
type expected struct {
	Image  [][][][]float32 `json:"image"`
	Logits [][]float64     `json:"logits"`
}

// load is a number of clients, and of rows in each of their requests.
type load struct{ clients, rows int }

// figures of a load: requests per second, and milliseconds. CPU is the processor time of the server for a
// request, which other programs on the machine affect least.
type figures struct{ rate, p50, p99, cpu float64 }

// running is a server.
type running struct {
	url string
	pid int
}

// cpu is the processor time that the server has taken so far, or 0 where there is no /proc.
func (r running) cpu() time.Duration {
	s, _ := procfs.ParseStat(procfs.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid)))
	return s.Processor
}

func compare(gpux, python, digits string, rounds int, duration time.Duration) (missed bool, err error) {
	text, err := os.ReadFile(filepath.Join(digits, "expected.json"))
	if err != nil {
		return false, err
	}
	var e expected
	if err := json.Unmarshal(text, &e); err != nil {
		return false, err
	}
	folder, err := os.MkdirTemp("", "gpux-bench-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(folder)
	yml, err := os.ReadFile(filepath.Join(digits, "gpux.yml"))
	if err != nil {
		return false, err
	}
	model, err := os.ReadFile(filepath.Join(digits, "digits.onnx"))
	if err != nil {
		return false, err
	}
	for name, data := range map[string][]byte{"gpux.yml": append(yml, "runtime:\n  threads: 1\n"...), "digits.onnx": model} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			return false, err
		}
	}
	names := []string{"gpux", "Python"}
	servers := map[string]running{}
	for name, command := range map[string]func(port string) *exec.Cmd{
		"gpux": func(port string) *exec.Cmd {
			return exec.Command(gpux, "serve", folder+"/", "--port", port, "--provider", "cpu")
		},
		"Python": func(port string) *exec.Cmd {
			return exec.Command(python, "test/bench/gpux/server.py", filepath.Join(folder, "digits.onnx"), port)
		},
	} {
		server, stop, err := start(command)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		defer stop()
		if err := check(server.url, e); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		servers[name] = server
	}
	loads := []load{{1, 1}, {16, 1}, {1, 16}, {4, 16}}
	fmt.Println("| Load | Server | requests/s | p50 ms | p99 ms | CPU ms |\n|---|---|--:|--:|--:|--:|")
	for _, l := range loads {
		results := map[string][]figures{}
		body, err := json.Marshal(map[string]any{"image": e.Image[:l.rows]})
		if err != nil {
			return false, err
		}
		for range rounds {
			for _, name := range names {
				f, err := drive(servers[name], body, l.clients, duration)
				if err != nil {
					return false, fmt.Errorf("%s: %w", name, err)
				}
				results[name] = append(results[name], f)
			}
			slices.Reverse(names)
		}
		rates := map[string]float64{}
		for _, name := range []string{"gpux", "Python"} {
			f := median(results[name])
			rates[name] = f.rate
			fmt.Printf("| clients: %d, rows: %d | %s | %.0f | %.2f | %.2f | %.3f |\n", l.clients, l.rows, name, f.rate, f.p50, f.p99, f.cpu)
		}
		missed = missed || rates["gpux"] < rates["Python"]
	}
	return missed, nil
}

// start starts a server on a free port and waits until it answers.
func start(command func(port string) *exec.Cmd) (r running, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, nil, err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		return r, nil, err
	}
	cmd := command(port)
	cmd.Env = append(os.Environ(), "OTEL_SDK_DISABLED=true", "GPUFLIGHT_LOG_LEVEL=off")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return r, nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it was told to end
	}
	for range 300 {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
			return running{"http://127.0.0.1:" + port + "/predict", cmd.Process.Pid}, stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	return r, nil, errors.New("it does not answer within 30 s")
}

// post sends a request and reads the answer.
func post(client *http.Client, url string, body []byte) ([]byte, error) {
	resp, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return text, err
}

// check compares the answers with those of the framework.
func check(url string, e expected) error {
	body, err := json.Marshal(map[string]any{"image": e.Image})
	if err != nil {
		return err
	}
	text, err := post(http.DefaultClient, url, body)
	if err != nil {
		return err
	}
	var got expected
	if err := json.Unmarshal(text, &got); err != nil {
		return err
	}
	if len(got.Logits) != len(e.Logits) {
		return fmt.Errorf("%d rows instead of %d", len(got.Logits), len(e.Logits))
	}
	for i, row := range e.Logits {
		for j, want := range row {
			if math.Abs(got.Logits[i][j]-want) > 1e-4 {
				return fmt.Errorf("row %d has the logit %v instead of %v", i, got.Logits[i][j], want)
			}
		}
	}
	return nil
}

// drive sends requests for a time.
func drive(server running, body []byte, clients int, duration time.Duration) (f figures, err error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var mutex sync.Mutex
	var times []float64
	var all sync.WaitGroup
	began, cpu := time.Now(), server.cpu()
	for range clients {
		all.Go(func() {
			var own []float64
			var failed error
			for time.Since(began) < duration && failed == nil {
				sent := time.Now()
				_, failed = post(client, server.url, body)
				own = append(own, time.Since(sent).Seconds()*1e3)
			}
			mutex.Lock()
			defer mutex.Unlock()
			times = append(times, own...)
			err = errors.Join(err, failed)
		})
	}
	all.Wait()
	if err != nil {
		return f, err
	}
	took := time.Since(began).Seconds()
	slices.Sort(times)
	n := float64(len(times))
	return figures{n / took, times[len(times)/2], times[len(times)*99/100], (server.cpu() - cpu).Seconds() * 1e3 / n}, nil
}

func median(list []figures) figures {
	of := func(value func(figures) float64) float64 {
		var all []float64
		for _, f := range list {
			all = append(all, value(f))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return figures{
		of(func(f figures) float64 { return f.rate }), of(func(f figures) float64 { return f.p50 }),
		of(func(f figures) float64 { return f.p99 }), of(func(f figures) float64 { return f.cpu }),
	}
}
