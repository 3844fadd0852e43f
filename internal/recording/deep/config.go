// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/internal/recording/settings"
)

// Defaults of Config.
const (
	DefaultFor      = 2 * time.Second
	DefaultBlackout = 2 * time.Second
	DefaultCoolDown = 10 * time.Second
	DefaultPerHour  = 60
	DefaultShare    = 0.05
)

const (
	// MinFor and MaxFor bound a window: shorter ones see next to nothing, longer ones are no
	// windows.
	MinFor = 10 * time.Millisecond
	MaxFor = time.Minute
	// maxPerHour bounds what is remembered of the last hour.
	maxPerHour = 10_000
	// lookAgain is how often a window of the schedule that is due looks for something to look into.
	lookAgain = 250 * time.Millisecond
	// settle is how long after a window its traces may still come in: figures are not used until
	// then.
	settle = time.Second
)

// Config says which windows there may be. Its zero value allows requests by the program only,
// within the default limits.
type Config struct {
	// Enabled says that windows may be asked for at all. Who makes a Controller looks at it; New
	// does not.
	Enabled bool
	// Engine and For are those of requests that do not say, and of the schedule and rules; "" is
	// PC, 0 DefaultFor.
	Engine Engine
	For    time.Duration

	// After and Every are the schedule: a window that long after the start, and again every so
	// often. Of 0 both there is none; with Every alone the first comes after it, with After alone
	// there is one. Before the program uses the device there is none: what is due then comes when
	// it does.
	After, Every time.Duration
	// When are the rules.
	When []rule.Rule
	// Signal is the signal that asks for a window, USR1 or USR2, or "" for none.
	Signal string

	// Max bounds the windows in all in which an engine ran, 0 for no bound.
	Max int
	// Blackout is how long after the start there is no window; 0 is DefaultBlackout, or After if
	// that is less; below 0 is none.
	Blackout time.Duration
	// CoolDown is the least time from the end of a window, or of an attempt, to the next. 0 is
	// DefaultCoolDown, or the time that the schedule leaves if that is less. Below 0 is none.
	CoolDown time.Duration
	// PerHour bounds windows and attempts in any hour, Share the part of any hour that they may
	// take, arming and disarming included. 0 is DefaultPerHour and DefaultShare, besides what the
	// schedule needs.
	PerHour int
	Share   float64

	// Opened and Closed are told of each window, one call at a time, by the goroutine that runs it:
	// they must not wait. Opened comes before anything is paused, Closed after all is restored.
	// Attempts in which no engine ran have both, too. Refused requests have neither.
	Opened, Closed func(Window)
	// Logger is told of broken engines; nil drops it.
	Logger *slog.Logger
}

// Planned says whether windows come without being asked for, by the schedule or a rule.
func (c *Config) Planned() bool { return c.After > 0 || c.Every > 0 || len(c.When) > 0 }

const (
	// Variable enables windows. Each flag of the table sets it to true.
	Variable = "GPUFLIGHT_DEEP"
	// WhenVariable holds the rules, separated by semicolons. Its flag can be given several times.
	WhenVariable = "GPUFLIGHT_DEEP_WHEN"
)

// Table returns the settings that users make. Reading it changes c.
func (c *Config) Table() []settings.Setting {
	return []settings.Setting{
		{Variable: Variable, Set: settings.To(&c.Enabled, settings.Bool)},
		{
			Variable: "GPUFLIGHT_DEEP_AFTER", Set: settings.To(&c.After, settings.Duration(time.Millisecond)), Flag: "deep-after",
			Help: "open a deep window this `duration` after the start of a process (example: 30s)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_EVERY", Set: settings.To(&c.Every, settings.Duration(MinFor)), Flag: "deep-every",
			Help: "open deep windows every so often, a `duration` (example: 5m)",
		},
		{
			Variable: WhenVariable, Set: func(v string) (err error) { c.When, err = ParseRules(v); return err }, Flag: "deep-when",
			Help: "open a deep window when a `rule` is met, such as 'kernel.rate < 100/s for 2s' or 'scope(train_step).p95 > 1.5x baseline'; can be given several times",
		},
		{
			Variable: "GPUFLIGHT_DEEP_FOR", Set: settings.To(&c.For, settings.Duration(MinFor)), Flag: "deep-for",
			Help: "`duration` of a deep window (default: 2s)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_ENGINE", Set: settings.To(&c.Engine, parseEngine), Flag: "deep-engine",
			Help: "`engine` of deep windows: pc (samples of program counters with stall reasons), sass (instruction counts), or both, half the time each (default: pc)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_MAX", Set: settings.To(&c.Max, settings.Int(0, math.MaxInt32)), Flag: "deep-max",
			Help: "most deep `windows` of a process, 0 for any number (default: 0)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_BLACKOUT", Set: settings.To(&c.Blackout, settings.ZeroIsNone(settings.Duration(0))), Flag: "deep-blackout",
			Help: "no deep window for this `duration` after the start (default: 2s, or --deep-after if that is less)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_COOLDOWN", Set: settings.To(&c.CoolDown, settings.ZeroIsNone(settings.Duration(0))), Flag: "deep-cooldown",
			Help: "least `duration` between two deep windows (default: 10s, or what --deep-every leaves)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_PER_HOUR", Set: settings.To(&c.PerHour, settings.Int(1, maxPerHour)), Flag: "deep-per-hour",
			Help: "most deep `windows` in an hour (default: 60, and those of --deep-every)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_SHARE", Set: settings.To(&c.Share, settings.Share), Flag: "deep-share",
			Help: "most of an hour that deep windows may take, a `share` (default: 5%, and that of --deep-every)",
		},
		{
			Variable: "GPUFLIGHT_DEEP_SIGNAL", Set: settings.To(&c.Signal, parseSignal), Flag: "deep-signal",
			Help: "open a deep window at a `signal` to the process: USR1 or USR2",
		},
	}
}

// ConfigFromEnv reads the configuration. getenv works like os.Getenv: "" means not set. GPUFLIGHT_DEEP
// enables windows, as does any setting that opens one (AFTER, EVERY, WHEN, SIGNAL), unless
// GPUFLIGHT_DEEP is false. The error names each variable with an invalid value and the permitted
// values. Those settings have their defaults.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	c := Config{Engine: PC}
	err := settings.Read(c.Table(), getenv)
	if getenv(Variable) == "" {
		c.Enabled = c.Planned() || c.Signal != ""
	}
	if err != nil {
		return c, err
	}
	if _, err = c.complete(); err != nil {
		// Settings that contradict each other have their defaults, all of them.
		c.After, c.Every, c.For, c.Blackout, c.CoolDown, c.PerHour, c.Share = 0, 0, 0, 0, 0, 0, 0
	}
	return c, err
}

func parseEngine(v string) (Engine, error) { return ParseEngine(strings.ToLower(v)) }

func parseSignal(v string) (string, error) {
	switch v = strings.TrimPrefix(strings.ToUpper(v), "SIG"); v {
	case "USR1", "USR2":
		return v, nil
	}
	return "", settings.Want("USR1 or USR2")
}

// complete fills in the defaults and checks the whole.
func (c Config) complete() (Config, error) {
	if c.Engine == "" {
		c.Engine = PC
	}
	if _, err := ParseEngine(string(c.Engine)); err != nil {
		return c, err
	}
	c.For = orDefault(c.For, DefaultFor)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.For < MinFor || c.For > MaxFor:
		return c, fmt.Errorf("a deep window of %v; it must be %v to %v long", c.For, MinFor, MaxFor)
	case c.After < 0 || c.Every < 0 || c.Max < 0 || c.PerHour < 0 || !(c.Share >= 0 && c.Share <= 1):
		return c, errors.New("a limit of deep windows is below 0, or a share above 1")
	case c.PerHour > maxPerHour:
		return c, fmt.Errorf("%d deep windows an hour; %d are the most", c.PerHour, maxPerHour)
	case c.Signal != "" && c.Signal != "USR1" && c.Signal != "USR2":
		return c, fmt.Errorf("%q is no signal for deep windows; there are USR1 and USR2", c.Signal)
	case len(c.When) > rule.MaxRules:
		return c, fmt.Errorf("there are %d rules for deep windows; %d are the most", len(c.When), rule.MaxRules)
	}
	if c.Every > 0 && c.After == 0 {
		c.After = c.Every
	}
	switch {
	case c.Blackout == 0 && c.After > 0:
		c.Blackout = min(DefaultBlackout, c.After)
	case c.Blackout == 0:
		c.Blackout = DefaultBlackout
	case c.After > 0 && c.After < c.Blackout:
		return c, fmt.Errorf("the first deep window is due after %v, in the blackout of %v; make one of them fit", c.After, c.Blackout)
	}
	return c.fitSchedule()
}

// fitSchedule makes the limits that were not set such that the schedule keeps them, and refuses
// those that were set and cannot be kept.
func (c Config) fitSchedule() (Config, error) {
	windows, share := 0, 0.
	if c.Every > 0 {
		if c.Every <= c.For {
			return c, fmt.Errorf("deep windows of %v every %v leave nothing between; make them shorter or rarer", c.For, c.Every)
		}
		windows = int(time.Hour/c.Every) + 1
		share = min(1, float64(windows)*c.For.Hours())
	}
	switch {
	case c.CoolDown == 0 && c.Every > 0:
		// Half of what is between: arming and disarming take their time, too.
		c.CoolDown = min(DefaultCoolDown, (c.Every-c.For)/2)
	case c.CoolDown == 0:
		c.CoolDown = DefaultCoolDown
	case c.Every > 0 && c.CoolDown > c.Every-c.For:
		return c, fmt.Errorf("deep windows of %v every %v leave less than the cool-down of %v between; make one of them fit", c.For, c.Every, c.CoolDown)
	}
	switch {
	case c.PerHour == 0:
		c.PerHour = min(maxPerHour, DefaultPerHour+windows)
	case windows > c.PerHour:
		return c, fmt.Errorf("a deep window every %v makes %d an hour, above the maximum of %d; make one of them fit", c.Every, windows, c.PerHour)
	}
	switch {
	case c.Share == 0:
		// Twice, since arming and disarming count.
		c.Share = min(1, DefaultShare+2*share)
	case share > c.Share:
		return c, fmt.Errorf("deep windows of %v every %v take %.3g%% of the time, above the share of %.3g%%; make one of them fit", c.For, c.Every, share*100, c.Share*100)
	case c.For.Hours() > c.Share:
		return c, fmt.Errorf("one deep window of %v is more than %.3g%% of an hour; make one of them fit", c.For, c.Share*100)
	}
	return c, nil
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// ParseRules reads rules that are separated by semicolons or lines.
func ParseRules(text string) ([]rule.Rule, error) {
	var rules []rule.Rule
	var errs []error
	for _, part := range strings.FieldsFunc(text, func(c rune) bool { return c == '\n' || c == ';' }) {
		if strings.TrimSpace(part) == "" {
			continue
		}
		r, err := rule.Parse(part)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = append(rules, r)
	}
	if len(rules) > rule.MaxRules {
		errs = append(errs, fmt.Errorf("there are %d rules; %d are the most", len(rules), rule.MaxRules))
		rules = rules[:rule.MaxRules]
	}
	return rules, errors.Join(errs...)
}
