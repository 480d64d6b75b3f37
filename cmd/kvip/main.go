// Command kvip is the bootstrap gateway for Apache Kafka.
package main

import (
	"os"

	"github.com/kvip/kvip/cmd/kvip/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
