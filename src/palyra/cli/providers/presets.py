"""Common model providers: their URL, their dialect, and the usual variable of their key."""

from dataclasses import dataclass

from palyra.core.model.catalog import DialectName


@dataclass(frozen=True, slots=True)
class ProviderPreset:
    """One provider."""

    name: str
    title: str
    dialect: DialectName
    base_url: str | None = None
    """None for the provider's own URL, which the dialect knows."""
    variables: tuple[str, ...] = ()
    """The usual variables of its key; empty for a server on this machine, which needs no key."""
    host_variable: str | None = None
    """The variable with the address of a server on this machine."""

    @property
    def is_server(self) -> bool:
        """Whether it is a server on this machine."""
        return not self.variables


PROVIDER_PRESETS = {
    one.name: one
    for one in (
        ProviderPreset("anthropic", "Anthropic", DialectName.ANTHROPIC, variables=("ANTHROPIC_API_KEY",)),
        ProviderPreset("openai", "OpenAI", DialectName.RESPONSES, variables=("OPENAI_API_KEY",)),
        ProviderPreset("gemini", "Google Gemini", DialectName.GEMINI, variables=("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        ProviderPreset(
            "openrouter", "OpenRouter", DialectName.OPENAI, "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)
        ),
        ProviderPreset(
            "deepseek", "DeepSeek", DialectName.OPENAI, "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)
        ),
        ProviderPreset("mistral", "Mistral", DialectName.OPENAI, "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
        ProviderPreset("groq", "Groq", DialectName.OPENAI, "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
        ProviderPreset("xai", "xAI", DialectName.OPENAI, "https://api.x.ai/v1", ("XAI_API_KEY",)),
        ProviderPreset(
            "together", "Together", DialectName.OPENAI, "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)
        ),
        ProviderPreset("cerebras", "Cerebras", DialectName.OPENAI, "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
        ProviderPreset(
            "ollama", "Ollama", DialectName.OPENAI, "http://127.0.0.1:11434/v1", host_variable="OLLAMA_HOST"
        ),
        ProviderPreset("lmstudio", "LM Studio", DialectName.OPENAI, "http://127.0.0.1:1234/v1"),
        ProviderPreset("llamacpp", "llama.cpp", DialectName.OPENAI, "http://127.0.0.1:8080/v1"),
        ProviderPreset("vllm", "vLLM", DialectName.OPENAI, "http://127.0.0.1:8000/v1"),
    )
}
