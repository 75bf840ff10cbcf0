/** Desktop notices and a sound, where the reader chose them and looks at something else. */
import { usePreferences } from '@/stores/preferences'

const TONES = [660, 880]
const TONE_SECONDS = 0.12

/** `tag`: a newer one of the same run replaces it. `open` is called when it is clicked. */
export function alertReader({ title, body, tag }: { title: string; body: string; tag: string }, open: () => void): void {
  if (document.hasFocus()) return
  const preferences = usePreferences()
  if (preferences.notices === 'desktop' && 'Notification' in window && Notification.permission === 'granted') {
    const notice = new Notification(title, { body, tag, icon: '/ui/icon.svg' })
    notice.onclick = () => {
      window.focus()
      open()
      notice.close()
    }
  }
  if (preferences.sound === 'on') playSound()
}

/** Two short tones. Without a click or a key on the page before, browsers play none. */
export function playSound(): void {
  const audio = new AudioContext()
  const gain = audio.createGain()
  gain.gain.value = 0.06
  gain.connect(audio.destination)
  TONES.forEach((frequency, index) => {
    const tone = audio.createOscillator()
    tone.frequency.value = frequency
    tone.connect(gain)
    tone.start(audio.currentTime + index * TONE_SECONDS)
    tone.stop(audio.currentTime + (index + 1) * TONE_SECONDS)
    if (index === TONES.length - 1) tone.onended = () => void audio.close()
  })
}
