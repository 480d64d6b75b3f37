package run

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
)

// NewLogger makes the process's logger, to standard error, and the handle by which its level changes.
func NewLogger(cfg config.Log) (*zap.Logger, zap.AtomicLevel, error) {
	level, err := zap.ParseAtomicLevel(cfg.Level)
	if err != nil {
		return nil, level, err
	}
	c := zap.NewProductionConfig()
	c.Level = level
	c.Encoding = cfg.Format
	c.DisableStacktrace = true
	// The same message more than 100 times a second is thinned out: a flood of clients must not become a flood of lines.
	c.Sampling = &zap.SamplingConfig{Initial: 100, Thereafter: 1000}
	c.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	if cfg.Format == "console" {
		c.DisableCaller = true
		c.EncoderConfig.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		c.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	log, err := c.Build()
	return log, level, err
}
